#!/usr/bin/env bash
# Runs every fuzz target for SECONDS_EACH seconds (60 unless set), or those named as arguments. A crash stops it; the
# input that caused it is in fuzz/artifacts/. The target `commands` is none of cargo-fuzz: every command of the program on damaged
# images, from STETFS_DAMAGE_FROM on (the clock's seconds unless set), by tests that say what to keep.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"

commands() {
    local from=${STETFS_DAMAGE_FROM:-$(date +%s)}
    echo "== commands, ${SECONDS_EACH:-60} s, from image $from"
    (cd .. && STETFS_DAMAGE_FROM=$from STETFS_DAMAGE_SECONDS=${SECONDS_EACH:-60} \
        "${CARGO:-cargo}" test --release --locked -p stetfs-cli --test cli -- damaged --nocapture)
}

if [ "$*" = commands ]; then
    commands
    exit
fi

if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "fuzz: this needs a nightly toolchain and cargo-fuzz; install them with:" >&2
    echo "    rustup toolchain install nightly --profile minimal && cargo +nightly install cargo-fuzz" >&2
    exit 1
fi

targets=("$@")
[ ${#targets[@]} -gt 0 ] || {
    mapfile -t targets < <(cargo +nightly fuzz list)
    targets+=(commands)
}
for target in "${targets[@]}"; do
    if [ "$target" = commands ]; then
        commands
        continue
    fi
    echo "== $target, ${SECONDS_EACH:-60} s"
    cargo +nightly fuzz run "$target" -- -max_total_time="${SECONDS_EACH:-60}" -rss_limit_mb=2048 -print_final_stats=1
done
