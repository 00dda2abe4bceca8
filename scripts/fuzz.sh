#!/usr/bin/env bash
# Runs every fuzz target for SECONDS_EACH seconds (60 unless set), or those named as arguments. A crash stops it; the
# input that caused it is in fuzz/artifacts/.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"

if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "fuzz: this needs a nightly toolchain and cargo-fuzz; install them with:" >&2
    echo "    rustup toolchain install nightly --profile minimal && cargo +nightly install cargo-fuzz" >&2
    exit 1
fi

targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cargo +nightly fuzz list)
for target in "${targets[@]}"; do
    echo "== $target, ${SECONDS_EACH:-60} s"
    cargo +nightly fuzz run "$target" -- -max_total_time="${SECONDS_EACH:-60}" -rss_limit_mb=2048 -print_final_stats=1
done
