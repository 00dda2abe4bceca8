#!/usr/bin/env bash
# Runs every fuzz target for SECONDS_EACH seconds (60 unless set), or those named as arguments; `scripts/fuzz.sh --list` names them. A crash stops
# it; the input that caused it is in fuzz/artifacts/, and `STETFS_FUZZ=TARGET cargo run -p stetfs-fuzz INPUT` replays it. Inputs that reach
# something new are kept in fuzz/corpus/. The target `commands` is none of cargo-fuzz: every command of the program on damaged
# images, from STETFS_DAMAGE_FROM on (the clock's seconds unless set), by tests that say what to keep.
#
# No sanitizer of memory is used: the code under test has no unsafe code but in crates/sys, and so any toolchain does.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${SECONDS_EACH:-60}
cargo=${CARGO:-cargo}

commands() {
    local from=${STETFS_DAMAGE_FROM:-$(date +%s)}
    echo "== commands, $seconds s, from image $from"
    STETFS_DAMAGE_FROM=$from STETFS_DAMAGE_SECONDS=$seconds \
        "$cargo" test --release --locked -p stetfs-cli --test cli -- damaged --nocapture
}

list() {
    "$cargo" run --quiet --locked -p stetfs-fuzz
}

if [ "$*" = --list ]; then
    list
    echo commands
    exit
fi
if [ "$*" = commands ]; then
    commands
    exit
fi
if ! "$cargo" fuzz --version >/dev/null 2>&1; then
    echo "fuzz: this needs cargo-fuzz; install it with:  cargo install --locked cargo-fuzz" >&2
    exit 1
fi

targets=("$@")
[ ${#targets[@]} -gt 0 ] || {
    mapfile -t targets < <(list)
    targets+=(commands)
}
for target in "${targets[@]}"; do
    if [ "$target" = commands ]; then
        commands
        continue
    fi
    echo "== $target, $seconds s"
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    STETFS_FUZZ=$target "$cargo" fuzz run --sanitizer none --features libfuzzer fuzz "fuzz/corpus/$target" -- \
        -artifact_prefix="fuzz/artifacts/$target/" -max_total_time="$seconds" -rss_limit_mb=2048 -len_control=0 -max_len=256 -timeout=60 -print_final_stats=1
done
