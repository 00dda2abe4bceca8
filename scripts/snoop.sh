#!/usr/bin/env bash
# Pages that the kernel's own ext4 programs on an exported NAND part, with and without snooping on its journal.
#
#   scripts/snoop.sh STETFS        STETFS is the built command; needs root, FUSE and loop devices
#
# For each of data=journal and data=ordered, blocks of 1 KiB and 4 KiB, on a part of 128 MiB with pages of 512 bytes: mkfs.ext4, mount through a
# loop device, then each workload; counted from just before it until everything has come home (an unmount). The figures are counts and
# repeat to within a few percent, since the kernel decides when it writes what.
set -euo pipefail
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin LC_ALL=C

stetfs=$(realpath "${1:?usage: scripts/snoop.sh STETFS}")
[ "$(id -u)" -eq 0 ] || { echo "snoop.sh: needs root" >&2; exit 1; }
for program in mkfs.ext4 losetup fio getfattr; do
    command -v $program >/dev/null || { echo "snoop.sh: $program is needed" >&2; exit 1; }
done

work=$(mktemp -d)
device=""
finish() {
    timeout 60 umount "$work/mnt" 2>/dev/null || true
    [ -z "$device" ] || timeout 20 losetup -d "$device" 2>/dev/null || true
    timeout 60 "$stetfs" umount "$work/dev" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
mkdir "$work/dev" "$work/mnt" "$work/tree"
# 400 files of 1 byte to 40 kB in 20 directories: about 8 MB, the same each time.
for d in $(seq 20); do
    mkdir "$work/tree/$d"
    for f in $(seq 20); do
        head -c $(((d * 20 + f) * 7919 % 40000 + 1)) < <(yes "$d $f") >"$work/tree/$d/$f"
    done
done

count() { # NAME: a counter of the layer
    getfattr --absolute-names -n system.stetfs.stats --only-values "$work/dev" | grep -o "\"$1\":[0-9]*" | cut -d: -f2
}
counts() { echo "$(count host_pages) $(count map_pages) $(count gc_pages) $(count remapped_pages)"; }

tree() { timeout 120 cp -a "$work/tree" "$work/mnt/"; }
overwrites() {
    timeout 300 fio --name=w --filename="$work/mnt/file" --rw=randwrite --bs=4k --size=8m --io_size=8m --fsync=1 --randseed=7 \
        --minimal >/dev/null
}
appends() {
    timeout 300 fio --name=w --filename="$work/mnt/log" --rw=write --bs=1k --size=1m --fsync=1 --minimal >/dev/null
}

mounted() { timeout 60 mount -o "data=$1,noatime" "$device" "$work/mnt"; }

run() { # MODE BLOCK SNOOP
    rm -f "$work/nand"
    "$stetfs" nand create --flawless "$work/nand" >/dev/null
    # shellcheck disable=SC2086
    "$stetfs" nand export $3 "$work/nand" "$work/dev"
    device=$(timeout 20 losetup --show --find --direct-io=on --sector-size 512 "$work/dev/device")
    timeout 60 mkfs.ext4 -q -b "$2" -E lazy_itable_init=0,lazy_journal_init=0 "$device"
    mounted "$1"
    head -c 8388608 /dev/zero | tr '\0' x >"$work/mnt/file"
    timeout 60 umount "$work/mnt"
    local workload before after
    for workload in tree overwrites appends; do
        before=$(counts)
        mounted "$1"
        $workload
        timeout 120 umount "$work/mnt"
        after=$(counts)
        echo "$workload $before $after" >>"$work/result.$1.$2.${3:-none}"
    done
    timeout 120 e2fsck -fn "$device" >/dev/null 2>&1 || { echo "snoop.sh: e2fsck is not content" >&2; exit 1; }
    timeout 20 losetup -d "$device"
    device=""
    sleep 0.5
    timeout 60 "$stetfs" umount "$work/dev" 2>/dev/null
}

echo "| workload | data= | block | snoop | written | map | GC | programmed in all | remapped | of without |"
echo "|---|---|---|---|---|---|---|---|---|---|"
for mode in journal ordered; do
    for block in 1024 4096; do
        for snoop in "" --snoop; do run $mode $block "$snoop"; done
        paste -d' ' "$work/result.$mode.$block.none" "$work/result.$mode.$block.--snoop" |
            awk -v mode=$mode -v block=$block '
            function row(at, name) {
                host = $(at + 4) - $at; map = $(at + 5) - $(at + 1); gc = $(at + 6) - $(at + 2); all = host + map + gc
                if (name == "no") plain = all
                printf "| %s | %s | %d | %s | %d | %d | %d | %d | %d | %s |\n", $1, mode, block, name, host, map, gc, all,
                    $(at + 7) - $(at + 3), name == "no" ? "" : sprintf("%.0f %%", 100 * all / plain)
            }
            { row(2, "no"); row(11, "yes") }'
    done
done
