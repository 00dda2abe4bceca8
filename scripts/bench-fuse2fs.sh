#!/usr/bin/env bash
# stetfs called as fuse2fs beside the fuse2fs of e2fsprogs: the same image, the same work, by turns;
# and the directory in which the images are, without a mount, for what the work itself takes. Seconds,
# medians of ROUNDS, each with a sync, so that all have done the work. Then a synced untar, SIGKILL in
# the middle of a copy, a mount anew, and what e2fsck says of the image.
#
#   scripts/bench-fuse2fs.sh STETFS WHEELS [ROUNDS]
#
# Packages: fuse2fs e2fsprogs fuse3 python3-pip git. WHEELS is a directory with wheels for pip
# (python3 -m pip download -d WHEELS numpy scipy pandas); nothing is downloaded here. TREE is the
# tree to untar and copy (default: the sources at hand, without what was built). As an ordinary
# user, the two mount with -o fakeroot.
set -euo pipefail
stetfs=$(realpath "${1:?usage: scripts/bench-fuse2fs.sh STETFS WHEELS [ROUNDS]}")
wheels=$(realpath "${2:?where are the wheels?}")
rounds=${3:-5} tree=${TREE:-$(dirname "$(dirname "$(realpath "$0")")")} size=${SIZE:-3G}
export PATH=$PATH:/usr/sbin:/sbin
SCRATCH=${SCRATCH:-/tmp}
# shellcheck source=scripts/bench.sh
. "$(dirname "$0")/bench.sh"

mkdir "$dir/bin"
ln -s "$stetfs" "$dir/bin/fuse2fs"
declare -A program=([e2fsprogs]=$(command -v fuse2fs) [stetfs]=$dir/bin/fuse2fs)
options=rw
[ "$(id -u)" = 0 ] || options=fakeroot
mke2fs -q -t ext4 -E root_owner="$(id -u):$(id -g)" "$dir/empty.img" "$size"
git -C "$tree" archive --format=tar HEAD >"$dir/tree.tar"
git clone -q --bare --no-local "$tree" "$dir/repository.git"
mkdir "$dir/tree"
tar -xf "$dir/tree.tar" -C "$dir/tree"

mount_it() {
    "${program[$1]}" "$dir/$1.img" "$at" -f -o "$options" >"$dir/$1.log" 2>&1 &
    server=$!
    until mountpoint -q "$at"; do
        kill -0 "$server" || { cat "$dir/$1.log"; return 1; }
        sleep 0.05
    done
}
rows=(pip untar clone copy remove)
row() {
    case $1 in
        pip) python3 -m pip install -q --no-index --find-links "$wheels" --no-compile --no-deps \
            --disable-pip-version-check --root-user-action=ignore --target "$at/packages" \
            "$wheels"/*.whl ;;
        untar) mkdir "$at/tree" && tar -xf "$dir/tree.tar" -C "$at/tree" ;;
        clone) git clone -q --no-local "$dir/repository.git" "$at/clone" ;;
        copy) cp -a "$dir/tree" "$at/copy" ;;
        remove) rm -rf "$at/packages" "$at/tree" "$at/clone" "$at/copy" ;;
    esac
    sync -f "$at"
}
# measure WHO: all rows, where WHO is mounted.
measure() {
    local what from
    for what in "${rows[@]}"; do
        from=$(date +%s%N)
        row "$what"
        echo $((($(date +%s%N) - from) / 1000000)) >>"$dir/$what.$1"
    done
}
for ((n = 0; n < rounds; n++)); do
    measure host
    for who in e2fsprogs stetfs; do
        cp --sparse=always "$dir/empty.img" "$dir/$who.img"
        mount_it $who
        measure $who
        unmount
        wait "$server" || true
        e2fsck -fn "$dir/$who.img" >"$dir/fsck" 2>&1 || { cat "$dir/fsck"; exit 1; }
    done
done
echo "| work | no mount, s | fuse2fs of e2fsprogs, s | stetfs as fuse2fs, s | times as fast |"
echo "|---|---|---|---|---|"
for what in "${rows[@]}"; do
    h=$(median <"$dir/$what.host") a=$(median <"$dir/$what.e2fsprogs")
    b=$(median <"$dir/$what.stetfs")
    awk -v w="$what" -v h="$h" -v a="$a" -v b="$b" 'BEGIN {
        printf "| %s | %.2f | %.2f | %.2f | %.1f |\n", w, h / 1000, a / 1000, b / 1000, a / b }'
done

echo
echo "Untar and sync, SIGKILL in the middle of a copy, a mount and an unmount, e2fsck -fn:"
wanted=$(find "$dir/tree" | wc -l)
for who in e2fsprogs stetfs; do
    cp --sparse=always "$dir/empty.img" "$dir/$who.img"
    mount_it $who
    row untar
    row copy >/dev/null 2>&1 &
    work=$!
    until [ "$(find "$at/copy" 2>/dev/null | wc -l)" -gt 100 ]; do sleep 0.05; done
    kill -KILL "$server"
    wait "$server" "$work" 2>/dev/null || true
    umount -l "$at" 2>/dev/null || fusermount3 -uz "$at" 2>/dev/null || true
    found=none
    if mount_it $who; then
        found=$(find "$at/tree" | wc -l)
        unmount
        wait "$server" || true
    fi
    code=0
    e2fsck -fn "$dir/$who.img" >"$dir/fsck" 2>&1 || code=$?
    echo "- $who: $found of $wanted synced files are there; e2fsck -fn ends with $code"
done
