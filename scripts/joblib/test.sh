#!/usr/bin/env bash
# Whether crash_shards.py, on joblib's backend loky and on a Dask cluster of this machine, finds what one run finds. Its Python packages come from
# PyPI into an environment that is gone afterwards.
#
#   scripts/joblib/test.sh STETFS
set -euo pipefail
stetfs=$(realpath "${1:?usage: scripts/joblib/test.sh STETFS}")
cd "$(dirname "$0")"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

skip() {
    echo "SKIPPED: $1" >&2
    exit 0
}

python3 -m venv "$dir/venv" >"$dir/log" 2>&1 || skip "python3 -m venv fails (Debian: python3-venv): $(tail -n 1 "$dir/log")"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install -r requirements.txt >"$dir/log" 2>&1 ||
    skip "pip cannot install joblib and dask: $(tail -n 1 "$dir/log")"

# Promises three lines that nothing has made durable.
cat >"$dir/program.sh" <<'END'
cd "$STETFS_DIR" || exit 9
for n in 1 2 3; do echo $n >>log; echo $n >"$STETFS_MARKS"; done
END
cat >"$dir/check.sh" <<'END'
cd "$STETFS_DIR" || exit 9
for n in $(cat "$STETFS_MARKS_FILE"); do grep -qx "$n" log || exit 1; done
END
"$stetfs" crash --check "sh $dir/check.sh" --save "$dir/rec" -- sh "$dir/program.sh"

# Of the table only the line with the numbers: states, judged, failing, causes.
numbers() { grep '^posix: '; }
one=$("$stetfs" crash --recording "$dir/rec" --model posix | numbers) || true
[ -n "$one" ]
for backend in loky dask; do
    more=()
    [ "$backend" = loky ] || more=(--dask local)
    status=0
    "$dir/venv/bin/python" crash_shards.py --stetfs "$stetfs" --recording "$dir/rec" --shards 4 \
        --reports "$dir/$backend" --jobs 2 "${more[@]}" -- --model posix >"$dir/said" || status=$?
    [ "$status" -eq 1 ] || { echo "$backend: exit code $status"; exit 1; }
    sum=$(numbers <"$dir/said")
    [ "$sum" = "$one" ] || { printf '%s: not the same:\n  %s\n  %s\n' "$backend" "$sum" "$one"; exit 1; }
    echo "$backend: $sum"
done
# Those that are there are not made again.
rm "$dir/loky/2-of-4.json"
"$dir/venv/bin/python" crash_shards.py --stetfs "$stetfs" --recording "$dir/rec" --shards 4 --reports "$dir/loky" \
    --jobs 2 -- --model posix 2>"$dir/again" >"$dir/said" || true
[ "$(cat "$dir/again")" = "shard 2 of 4 is done" ]
[ "$(numbers <"$dir/said")" = "$one" ]
# A shard that cannot be explored is no success.
if "$dir/venv/bin/python" crash_shards.py --stetfs "$stetfs" --recording /no/such --shards 2 --reports "$dir/none" 2>/dev/null; then
    echo "a recording that is not there was explored"
    exit 1
fi
echo "a shard that was missing, and one that fails: as they should"
