#!/usr/bin/env bash
# What `stetfs tx` adds to a command, in milliseconds: the command alone, as a transaction, and as
# one that fails at its end, which has all but the server's part, by turns on a volume of which the
# image is in memory. With the layer on the volume, and in memory. `server` is the ioctl that lays
# the layer over the directory, by strace in a run of its own. Medians of ROUNDS.
#
#   scripts/bench-tx.sh STETFS [ROUNDS [FILES]]
set -euo pipefail
stetfs=$(realpath "${1:?usage: scripts/bench-tx.sh STETFS [ROUNDS [FILES]]}")
rounds=${2:-5} files=${3:-1000} options=${STETFS_OPTIONS:-scheme=stet}
# shellcheck source=scripts/bench.sh
. "$(dirname "$0")/bench.sh"
into=$at/d
# Files of 2 KB; it ends with its last argument.
cat >"$dir/write.py" <<'PY'
import os, sys
for n in range(int(sys.argv[2])):
    with open(os.path.join(sys.argv[1], f"file{n}"), "wb") as f:
        f.write(b"x" * 2000)
sys.exit(int(sys.argv[3]))
PY
# command ROW CODE: sets `words` to what is run.
command() {
    case $1$2 in
        empty0) words=(true) ;;
        empty1) words=(false) ;;
        *) words=(python3 "$dir/write.py" "$into" "$files" "$2") ;;
    esac
}
# run ROW WAY CODE BEFORE...: once, with these words before the command, in a new directory.
run() {
    local row=$1 way=$2 code=$3 from to is=0
    shift 3
    rm -rf "$into"
    mkdir "$into"
    [ "$row" != rewrite ] || python3 "$dir/write.py" "$into" "$files" 0
    sync "$at"
    command "$row" "$code"
    from=$(date +%s%N)
    "$@" "${words[@]}" || is=$?
    to=$(date +%s%N)
    [ "$is" = "$code" ] || { echo "$row, $way: exit code $is" >&2; exit 1; }
    awk -v ns=$((to - from)) 'BEGIN { printf "%.2f\n", ns / 1e6 }' >>"$dir/$row.$way"
}

"$stetfs" mkfs "$dir/volume.img" --size 512M >/dev/null
"$stetfs" mount -o "$options" "$dir/volume.img" "$at"
printf '%-8s %-7s %9s %9s %9s %9s %9s\n' '' layer plain tx added failed server
for row in empty create rewrite; do
    for ((n = 0; n < rounds; n++)); do
        run $row plain 0 env
        for layer in volume memory; do
            tx=(env "$stetfs" tx --layer $layer "$into" --)
            run $row $layer.tx 0 "${tx[@]}"
            run $row $layer.failed 1 "${tx[@]}"
            run $row $layer.traced 0 strace -qq -T -e trace=ioctl -o "$dir/trace" "${tx[@]}"
            # LAY_OVER is 4 of type 0xe7 (stetfs_ioctl.h).
            sed -nE 's/.*0xe7, 0x4, .*<([0-9.]+)>$/\1/p' "$dir/trace" |
                awk '{ printf "%.2f\n", $1 * 1000 }' >>"$dir/$row.$layer.server"
        done
    done
    plain=$(median <"$dir/$row.plain")
    for layer in volume memory; do
        tx=$(median <"$dir/$row.$layer.tx") failed=$(median <"$dir/$row.$layer.failed")
        server=$(median <"$dir/$row.$layer.server")
        added=$(awk -v a="$tx" -v b="$plain" 'BEGIN { printf "%.2f", a - b }')
        printf '%-8s %-7s %9s %9s %9s %9s %9s\n' $row $layer "$plain" "$tx" "$added" "$failed" \
            "$server"
    done
done
