#!/usr/bin/env bash
# Changes the code in thousands of ways, one at a time, and sees whether a test fails: a mutant that none notices is one that the tests and the
# explorer would let pass as a mistake of ours. gamma.toml says what is changed and who judges. All mutants are in one build; each run of a
# test program is told which one is alive.
#
#   scripts/mutants.sh [--shard I/N] [ARGUMENT OF cargo gamma run...]
#
#   STETFS_LAB_CUTS=N      how much of each workload the explorer looks at (10 unless set)
#   STETFS_MUTANT_JOBS=N   mutants at a time (as many as there are processors unless set)
#
# What came of it is below target/cargo-gamma: gamma-report.json, and the same to be looked at. `cargo gamma merge` adds up shards.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

if ! "$cargo" gamma --version >/dev/null 2>&1; then
    echo "mutants: this needs cargo-gamma; install it with:  cargo install --locked cargo-gamma" >&2
    exit 1
fi

shard=()
if [ "${1-}" = --shard ]; then
    [[ ${2-} =~ ^([0-9]+)/([0-9]+)$ ]] && [ "${BASH_REMATCH[1]}" -ge 1 ] && [ "${BASH_REMATCH[1]}" -le "${BASH_REMATCH[2]}" ] || {
        echo "mutants: --shard wants I/N with I from 1 to N, not \"${2-}\"" >&2
        exit 2
    }
    # As in `stetfs crash`, the first is 1.
    shard=(--shard-index $((BASH_REMATCH[1] - 1)) --shard-count "${BASH_REMATCH[2]}")
    shift 2
fi
# It resolves the dependencies of every platform without a look at the network.
"$cargo" fetch --locked --quiet
export STETFS_LAB_CUTS=${STETFS_LAB_CUTS:-10}
# Without systemd there is no memory control to be had, which it would try to get by starting itself anew.
exec "$cargo" gamma run --no-relaunch --jobs "${STETFS_MUTANT_JOBS:-$(nproc)}" "${shard[@]}" "$@"
