#!/usr/bin/env bash
# How fast `stetfs crash -- PROGRAM` is: states that it judges in a second with a check that does nothing, states that need no check since it has
# judged an equal one, and how much longer a program takes while it is recorded than on a plain mount of an image in memory. Medians of ROUNDS.
#
#   scripts/bench-crash.sh STETFS [ROUNDS]
set -euo pipefail
stetfs=$(realpath "${1:?usage: scripts/bench-crash.sh STETFS [ROUNDS]}")
rounds=${2:-3}
# shellcheck source=scripts/bench.sh
. "$(dirname "$0")/bench.sh"
# A number in a report.
number() { sed -nE "s/.*\"$2\": ?([0-9.]+).*/\1/p" "$1" | head -n 1; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }
rate() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.0f\n", a / b }'; }

# Many states, all different: nothing is synced.
cat >"$dir/states.py" <<'END'
import os
os.chdir(os.environ["STETFS_DIR"])
for n in range(60):
    with open(f"file{n % 12}", "a") as f:
        f.write(f"{n}\n" * 300)
END
# Calls of the kinds that programs make who care for what they write; the seconds that it takes.
cat >"$dir/program.py" <<'END'
import os, sys, time
os.chdir(os.environ.get("STETFS_DIR") or sys.argv[1])
begin = time.monotonic()
for n in range(300):
    with open("tmp", "wb") as f:
        f.write(b"x" * 8000)
        os.fsync(f.fileno())
    os.rename("tmp", f"file{n}")
log = os.open("log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
for n in range(3000):
    os.write(log, b"y" * 1000)
    if n % 10 == 0:
        os.fdatasync(log)
with open(sys.argv[2], "w") as out:
    print(time.monotonic() - begin, file=out)
END

"$stetfs" crash --check /bin/true --save "$dir/rec" -- python3 "$dir/states.py" 2>/dev/null
for ((n = 0; n < rounds; n++)); do
    rm -f "$dir/said"
    for run in asked known; do
        "$stetfs" crash --recording "$dir/rec" --model posix --resume "$dir/said" --json "$dir/$run.json" >/dev/null 2>&1
    done
    rate "$(number "$dir/asked.json" judged)" "$(number "$dir/asked.json" seconds)" >>"$dir/asked"
    rate "$(number "$dir/known.json" states)" "$(number "$dir/known.json" seconds)" >>"$dir/known"
done
echo "judged with /bin/true:         $(median <"$dir/asked") states a second, of $(number "$dir/asked.json" judged)"
echo "equal to one that was judged:  $(median <"$dir/known") states a second, of $(number "$dir/known.json" states)"

for options in rw nowriteback; do
    for ((n = 0; n < rounds; n++)); do
        "$stetfs" mkfs --force "$dir/volume.img" --size 64M >/dev/null 2>&1
        "$stetfs" mount -o $options "$dir/volume.img" "$at" 2>/dev/null
        python3 "$dir/program.py" "$at" "$dir/seconds"
        cat "$dir/seconds" >>"$dir/$options"
        "$stetfs" umount "$at"
    done
done
for ((n = 0; n < rounds; n++)); do
    "$stetfs" crash --check /bin/true --save "$dir/rec" -- python3 "$dir/program.py" - "$dir/seconds" 2>/dev/null
    cat "$dir/seconds" >>"$dir/recorded"
done
recorded=$(median <"$dir/recorded")
for options in rw nowriteback; do
    plain=$(median <"$dir/$options")
    printf 'recorded / mounted (-o %s): %s (%.3f s / %.3f s)\n' "$options" "$(ratio "$recorded" "$plain")" "$recorded" "$plain"
done
