#!/usr/bin/env bash
# Changes the code in thousands of ways, one at a time, and sees whether a test fails: a mutant that none notices is one that the tests and the
# explorer would let pass as a mistake of ours. gamma.toml says what is changed and who judges. All mutants are in one build; each run of a
# test program is told which one is alive.
#
#   scripts/mutants.sh [--sample N [--seed S]] [--shard I/N] [--resume] [ARGUMENT OF cargo gamma run...]
#
#   --sample N             of all mutants only so many, drawn at random: each is as likely as any other, so the files have their share
#   --seed S               another draw (1 unless said); the same code, N and S give the same sample
#   --resume               goes on where a run with the same arguments was interrupted
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

shard=() sample='' seed=1
while :; do
    case ${1-} in
    --shard)
        [[ ${2-} =~ ^([0-9]+)/([0-9]+)$ ]] && [ "${BASH_REMATCH[1]}" -ge 1 ] && [ "${BASH_REMATCH[1]}" -le "${BASH_REMATCH[2]}" ] || {
            echo "mutants: --shard wants I/N with I from 1 to N, not \"${2-}\"" >&2
            exit 2
        }
        # As in `stetfs crash`, the first is 1.
        shard=(--shard-index $((BASH_REMATCH[1] - 1)) --shard-count "${BASH_REMATCH[2]}")
        ;;
    --sample | --seed)
        [[ ${2-} =~ ^[0-9]+$ ]] || {
            echo "mutants: $1 wants a number, not \"${2-}\"" >&2
            exit 2
        }
        declare "${1#--}=$2"
        ;;
    --resume) exec "$cargo" gamma run --no-relaunch --resume-testing ;;
    *) break ;;
    esac
    shift 2
done
# It resolves the dependencies of every platform without a look at the network.
"$cargo" fetch --locked --quiet
export STETFS_LAB_CUTS=${STETFS_LAB_CUTS:-10}
# A mutant's number is of what it changes and where, so the draw does not depend on the order of the list.
drawn=()
if [ -n "$sample" ]; then
    mapfile -t drawn < <("$cargo" gamma list mutants --json | sed -nE 's/^    "id": "([0-9a-f]+)",?$/\1/p' | while read -r id; do
        echo "$(sha256sum <<<"$seed $id" | cut -c 1-16) $id"
    done | sort | head -n "$sample" | cut -d ' ' -f 2)
    echo "mutants: ${#drawn[@]} drawn with seed $seed" >&2
    drawn=("${drawn[@]/#/--mutant=}")
fi
# Without systemd there is no memory control to be had, which it would try to get by starting itself anew.
exec "$cargo" gamma run --no-relaunch --jobs "${STETFS_MUTANT_JOBS:-$(nproc)}" "${shard[@]}" "${drawn[@]}" "$@"
