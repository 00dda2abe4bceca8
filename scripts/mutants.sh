#!/usr/bin/env bash
# Changes the code in thousands of ways, one at a time, and sees whether a test fails: a mutant that none notices is one that the tests and the
# explorer would let pass as a mistake of ours. gamma.toml says what is changed and who judges. All mutants are in one build; each run of a
# test program is told which one is alive.
#
#   scripts/mutants.sh [--sample N [--seed S]] [--shard I/N] [--resume] [ARGUMENT OF cargo gamma run...]
#
#   --sample N             of all mutants only so many, drawn at random: each is as likely as any other, so the files have their share
#   --seed S               another draw (1 unless said); the same code, N and S give the same sample
#   --shard I/N            only the I-th of N parts
#   --resume               goes on where a run with the same arguments was interrupted
#   STETFS_LAB_CUTS=N      how much of each workload the explorer looks at (10 unless set)
#   STETFS_MUTANT_JOBS=N   mutants at a time (as many as there are processors unless set)
#
# First the quick judges look at each mutant, then the slow ones at what survived. Both reports, verdicts.json of both and survivors.txt are
# below target/mutants/. `scripts/mutants.sh --sum DIRECTORY...` counts the verdicts of one run, or of the shards of one, again.
#
# docs/mutants.json keeps the verdicts of a run, and of each survivor what it means (`why`). `scripts/mutants.sh --table` writes the table of
# docs/MUTANTS.md from it.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
if ! command -v jq >/dev/null 2>&1; then
    echo "mutants: this needs jq; install the package of that name" >&2
    exit 1
fi
# The targets whose tests judge. `power_cut` is a journal's own, `power_cuts` and `recoveries` are the explorer's. What costs judge: `traces`,
# by each write, and `experiments`, by what the lab's small reports say to the digit.
quick=(stetfs_scheme stetfs_schemes stetfs_journal stetfs_ftl stetfs contract ftl limits names power_cut traces model)
slow=(stetfs stress posix power_cuts recoveries pairings regions experiments)
# Tests that take most of a program's time, and say little of one mutant: these wait for what survives. They are parts of names.
later=(contiguity contents_agree_with_a_vector large:: refused:: space:: stops_the_volume_and_loses planted_bug)

# The verdicts of a list, counted. The interval is Wilson's. A mutant that hangs is noticed by whoever waits for the tests; one whose `kind` is
# "equal" is no mistake, and counts for nothing; "cost" is a survivor that does no harm.
count() {
    jq -r '.[] | if .kind == "equal" then "Equal" else .verdict end, if .kind == "cost" then "Cost" else empty end' | awk '
        { n[$1]++ }
        END {
            noticed = n["Killed"] + n["TimedOut"]
            all = noticed + n["Survived"] + n["NoCoverage"]
            printf "%d killed, %d hang, %d survived, %d reached by no test; %d change nothing, %d do not compile\n",
                n["Killed"], n["TimedOut"], n["Survived"], n["NoCoverage"], n["Equal"], n["CompileError"]
            if (all == 0) exit
            z = 1.96; p = noticed / all; d = 1 + z * z / all
            m = (p + z * z / (2 * all)) / d
            h = z * sqrt(p * (1 - p) / all + z * z / (4 * all * all)) / d
            printf "noticed: %.1f %% of %d; of all mutants, with 95 %% confidence, between %.1f and %.1f %%\n",
                100 * p, all, 100 * (m - h), 100 * (m + h)
            if (n["Cost"] > 0)
                printf "noticed, or shown to cost something and to do no other harm: %.1f %%\n", 100 * (noticed + n["Cost"]) / all
        }'
}

# What came of the reports of the directories: verdicts.json in the first, and a summary.
sum() {
    local dir reports=()
    for dir; do
        reports+=("$dir/quick/gamma-report.json")
        [ ! -e "$dir/slow/gamma-report.json" ] || reports+=("$dir/slow/gamma-report.json")
    done
    # The slow judges' verdict stands for what they looked at.
    jq -s 'map(.files | to_entries[] | .key as $file | .value.mutants[] | {
            id, file: $file, line: .location.start.line, change: (.description // .mutatorName),
            verdict: (if (.statusReason // "" | startswith("timed out")) then "TimedOut" else .status end),
            by: (.killedBy // [])[0]
        }) | map(select(.verdict != "Pending" and .verdict != "Ignored")) | group_by(.id) | map(last) | sort_by(.file, .line)' \
        "${reports[@]}" >"$1/verdicts.json"
    jq -r '.[] | select(.verdict != "Killed" and .verdict != "CompileError")
        | "\(.file):\(.line) \(.id) \(.verdict): \(.change | gsub("\\s+"; " "))"' "$1/verdicts.json" | tee "$1/survivors.txt"
    count <"$1/verdicts.json"
}

case ${1-} in
--sum)
    shift
    sum "$@"
    exit
    ;;
--table)
    {
        sed '/^<!-- survivors -->$/q' docs/MUTANTS.md
        echo
        jq .verdicts docs/mutants.json | count
        printf '\n| where | what is changed | what it means |\n|---|---|---|\n'
        jq -r '.verdicts[] | select(.verdict | IN("Survived", "NoCoverage"))
            | "| `\(.file | ltrimstr("crates/")):\(.line)` | `\(.change | gsub("\\|"; "\\|"))` | \(.kind // "open"): \(.why // "not looked at yet") |"' \
            docs/mutants.json
        echo
        sed -n '/^<!-- end -->$/,$p' docs/MUTANTS.md
    } >docs/MUTANTS.new
    mv docs/MUTANTS.new docs/MUTANTS.md
    exit
    ;;
esac
if ! "$cargo" gamma --version >/dev/null 2>&1; then
    echo "mutants: this needs cargo-gamma; install it with:  cargo install --locked cargo-gamma" >&2
    exit 1
fi

shard='' sample='' seed=1 resume=''
while :; do
    case ${1-} in
    --shard)
        [[ ${2-} =~ ^([0-9]+)/([0-9]+)$ ]] && [ "${BASH_REMATCH[1]}" -ge 1 ] && [ "${BASH_REMATCH[1]}" -le "${BASH_REMATCH[2]}" ] || {
            echo "mutants: --shard wants I/N with I from 1 to N, not \"${2-}\"" >&2
            exit 2
        }
        shard=$2
        ;;
    --sample | --seed)
        [[ ${2-} =~ ^[0-9]+$ ]] || {
            echo "mutants: $1 wants a number, not \"${2-}\"" >&2
            exit 2
        }
        declare "${1#--}=$2"
        ;;
    --resume)
        resume=1
        shift
        continue
        ;;
    *) break ;;
    esac
    shift 2
done
name=${sample:-all}-$seed
dir=target/mutants/$name${shard:+-${shard/\//of}}
[ "$resume" ] || rm -rf "$dir"
mkdir -p "$dir"
# It resolves the dependencies of every platform without a look at the network.
"$cargo" fetch --locked --quiet
export STETFS_LAB_CUTS=${STETFS_LAB_CUTS:-10} STETFS_LAB_CASES=1
# What `make` says of how it was called: only in the same environment does a stage go on in the middle.
unset MAKEFLAGS MFLAGS MAKEOVERRIDES MAKELEVEL MAKE_TERMOUT MAKE_TERMERR RESUME SAMPLE SEED SHARD ARGS
# Without systemd there is no memory control to be had, which it would try to get by starting itself anew.
run=("$cargo" gamma run --no-relaunch --progress never)

# A mutant's number is of what it changes and where, so the draw does not depend on the order of the list.
if [ ! -s "$dir/drawn" ]; then
    "$cargo" gamma list mutants --json | jq -r '.[].id' | while read -r id; do
        echo "$(sha256sum <<<"$seed $id" | cut -c 1-16) $id"
    done | sort | awk -v "most=${sample:-1000000}" -v "shard=${shard:-1/1}" '
        BEGIN { split(shard, part, "/") }
        NR <= most && NR % part[2] == part[1] % part[2] { print $2 }' >"$dir/drawn.new"
    mv "$dir/drawn.new" "$dir/drawn"
fi
echo "mutants: $(wc -l <"$dir/drawn") drawn with seed $seed" >&2

# One stage: its name, a file with the mutants, and what is to be said to cargo gamma besides.
judge() {
    local to=$dir/$1 list=$2
    shift 2
    [ ! -e "$to/gamma-report.json" ] || return 0
    # What a stage has built and judged is kept for it, once it has begun to judge.
    if [ -e "$to/begun" ] && "${run[@]}" --resume-testing --artifact-dir "$to"; then
        return
    fi
    mkdir -p "$to"
    touch "$to/begun"
    "${run[@]}" --jobs "${STETFS_MUTANT_JOBS:-$(nproc)}" --artifact-dir "$to" $(sed 's/^/--mutant=/' "$list") "$@"
}

judge quick "$dir/drawn" "${quick[@]/#/--include-test=}" "$@" -- "${later[@]/#/--skip=}"
jq -r '.files[].mutants[] | select(.status == "NoCoverage" or .status == "Survived" and (.statusReason // "" | startswith("timed out") | not)) | .id' \
    "$dir/quick/gamma-report.json" >"$dir/survived"
[ ! -s "$dir/survived" ] || judge slow "$dir/survived" "${slow[@]/#/--include-test=}" "$@"
sum "$dir"
