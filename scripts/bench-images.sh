#!/usr/bin/env bash
# FILES files of a source tree into an ext4 image, by each way there is, by turns: seconds until the
# image is on the medium, medians of ROUNDS, and the room that the image takes. e2fsck and the number
# of files say whether it is right.
#
#   scripts/bench-images.sh STETFS [ROUNDS] [FILES]
#
# The tree is this project's, as often as it takes. SIZE (8G) is that of the images that are made
# before they are filled. Packages: e2fsprogs, fuse2fs, fuse3; root for the kernel's own mount.
set -euo pipefail
stetfs=$(realpath "${1:?usage: scripts/bench-images.sh STETFS [ROUNDS] [FILES]}")
rounds=${2:-5} files=${3:-100000} size=${SIZE:-8G}
source=$(dirname "$(dirname "$(realpath "$0")")")
export PATH=$PATH:/usr/sbin:/sbin
SCRATCH=${SCRATCH:-/tmp}
# shellcheck source=scripts/bench.sh
. "$(dirname "$0")/bench.sh"
image=$dir/image

mkdir "$dir/tree" "$dir/one"
git -C "$source" archive --format=tar HEAD | tar -x -C "$dir/one"
each=$(find "$dir/one" -type f | wc -l)
for ((n = 0; n * each < files; n++)); do cp -r "$dir/one" "$dir/tree/$n"; done
rm -r "$dir/one"
files=$(find "$dir/tree" -type f | wc -l)
tar -C "$dir/tree" -cf "$dir/tree.tar" .
# As debugfs takes it: it makes no directory by itself, and sets no owner or time.
(
    cd "$dir/tree"
    find . -mindepth 1 -type d -printf 'mkdir "%P"\n' | sort
    find . -type f -printf 'cd "/%h"\nwrite "%P" "%f"\n'
) >"$dir/commands"
mke2fs -q -t ext4 "$dir/empty.img" "$size"

# The server of a mount is waited for: it writes after umount(8) returns.
served() {
    "$@" >"$dir/log" 2>&1 &
    local server=$!
    until mountpoint -q "$at"; do
        kill -0 "$server" || { cat "$dir/log"; return 1; }
        sleep 0.02
    done
    cp -a "$dir/tree/." "$at/"
    unmount
    wait "$server" || true
}
fill() {
    case $1 in
        "stetfs mkfs --from DIR") "$stetfs" mkfs -q "$image" --from "$dir/tree" >/dev/null ;;
        "stetfs mkfs --from TAR") "$stetfs" mkfs -q "$image" --from "$dir/tree.tar" >/dev/null ;;
        "stetfs cp -a") "$stetfs" cp -qa "$dir/tree/." "$image:/" ;;
        "stetfs tar -x") "$stetfs" tar -qx "$image" -f "$dir/tree.tar" ;;
        "stetfs mount, cp -a") served "$stetfs" mount --foreground "$image" "$at" ;;
        "mke2fs -d DIR") mke2fs -q -t ext4 -d "$dir/tree" "$image" "$size" ;;
        "debugfs -f") (cd "$dir/tree" && debugfs -w -f "$dir/commands" "$image" >"$dir/log" 2>&1) ;;
        "fuse2fs, cp -a") served fuse2fs "$image" "$at" -f -o rw ;;
        "kernel's ext4, cp -a") mount -o loop "$image" "$at" && cp -a "$dir/tree/." "$at/" && unmount ;;
    esac
    sync "$image"
}
ways=("stetfs mkfs --from DIR" "stetfs mkfs --from TAR" "stetfs cp -a" "stetfs tar -x" "stetfs mount, cp -a"
    "mke2fs -d DIR" "debugfs -f")
if command -v fuse2fs >/dev/null; then ways+=("fuse2fs, cp -a"); else echo "SKIPPED: fuse2fs is not installed"; fi
if [ "$(id -u)" = 0 ]; then ways+=("kernel's ext4, cp -a"); else echo "SKIPPED: only root mounts by the kernel"; fi
for ((n = 0; n < rounds; n++)); do
    for way in "${!ways[@]}"; do
        rm -f "$image"
        case ${ways[way]} in *mkfs* | mke2fs*) ;; *) cp --sparse=always "$dir/empty.img" "$image" ;; esac
        sync -f "$dir"
        from=$(date +%s%N)
        fill "${ways[way]}"
        echo $((($(date +%s%N) - from) / 1000000)) >>"$dir/time.$way"
        du -k "$image" | cut -f1 >"$dir/room.$way"
        e2fsck -fn "$image" >"$dir/fsck" 2>&1 || { cat "$dir/fsck"; exit 1; }
        found=$("$stetfs" find "$image" -type f | wc -l)
        [ "$found" = "$files" ] || { echo "${ways[way]}: $found files, not $files"; exit 1; }
    done
done
echo "$files files, $(du -sm --apparent-size "$dir/tree" | cut -f1) MiB"
printf '%-24s %8s %10s\n' "" "seconds" "MiB"
for way in "${!ways[@]}"; do
    ms=$(median <"$dir/time.$way")
    printf '%-24s %8s %10d\n' "${ways[way]}" "$((ms / 1000)).$(printf %03d $((ms % 1000)))" $(($(cat "$dir/room.$way") / 1024))
done
