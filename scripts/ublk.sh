#!/usr/bin/env bash
# `stetfs below --as ublk` under Debian's kernel: its ext4 on a device of ours, the ends that a server may come to, and what is found
# afterwards. In a virtual machine by software emulation, so it needs no KVM; minutes.
#
#   scripts/ublk.sh          (make test-ublk)
#
# The kernel needs the driver, which Debian has since version 13. scripts/machine.sh has the machine.
set -euo pipefail

name=ublk
. "$(dirname "$0")/machine.sh"
find_kernel
[ -n "$(find "$kernel" -name 'ublk_drv.ko*')" ] || {
    echo "ublk: $kernel has no ublk_drv; Debian 13's has: name it with STETFS_KERNEL" >&2
    exit 1
}

rm -rf "$work/root"
put_programs "$stetfs" "$(command -v e2fsck)"

pack_initramfs crc16 crc32c_generic libcrc32c mbcache jbd2 ext4 -- ublk_drv <<'INIT'
mount -t tmpfs tmp /tmp
image=/tmp/disk.img
content() { yes "file $1" | head -c $((1000 + 997 * $1)); }
put() { content $1 >/tmp/new && dd if=/tmp/new of=/mnt/$1 bs=64k conv=fsync 2>/dev/null; }
# Whether the files 0 to $2 are what they were; by a program that prints a file of this name.
are_there() {
    n=0
    while [ $n -le $2 ]; do
        content $n >/tmp/expected
        $1$n | cmp -s - /tmp/expected || fail "file $n"
        n=$((n + 1))
    done
}
gone() {
    n=0
    while [ -e /proc/$1 ] && [ $n -lt 100 ]; do sleep 0.2; n=$((n + 1)); done
    [ ! -e /proc/$1 ] || fail "server $1 has not ended"
}
# Starts a server by this command; sets `dev` and `pid`.
serve() {
    dev=$(stetfs "$@" --as ublk --log /tmp/log 2>/tmp/said) || fail "no device: $(cat /tmp/said)"
    pid=$(sed -n 's/.*kill //p' /tmp/said)
    echo "$dev, server $pid"
}
below() { stetfs below $image --as ublk; }

try stetfs mkfs $image --size 64M
echo "== without the driver"
refuse below
stetfs below $image --as ublk 2>&1 | grep -q 'modprobe ublk_drv' || fail "no advice"
insmod /modules/ublk_drv.ko

echo "== files, and the end when nobody has it mounted"
serve below $image --stats /tmp/stats
try mount -t ext4 -o data=journal $dev /mnt
for n in 0 1 2 3 4 5 6 7; do try put $n; done
try dd if=/dev/zero of=/mnt/zeros bs=1M count=8 conv=fsync
rm /mnt/zeros
try fstrim /mnt
try umount /mnt
try kill $pid
gone $pid
try e2fsck -fn $image
are_there "stetfs cat $image:/" 7
grep -q '"requests": [1-9]' /tmp/stats || fail "no statistics"
[ ! -e $dev ] || fail "$dev is still there"

echo "== the end is asked for while it is mounted"
serve below $image
mount -t ext4 -o data=journal $dev /mnt
kill $pid
sleep 1
try put 8
are_there "cat /mnt/" 8
try umount /mnt
gone $pid
try e2fsck -fn $image

echo "== killed under a mount"
serve below $image
first=$dev
mount -t ext4 -o data=journal,errors=remount-ro $dev /mnt
try put 9
kill -9 $pid
refuse put 10
umount /mnt
serve below $image
[ $dev = $first ] || fail "$dev, and not $first again"
mount -t ext4 -o data=journal $dev /mnt
are_there "cat /mnt/" 9
umount /mnt

echo "== a second signal while it is mounted"
mount -t ext4 $dev /mnt
try put 10
kill $pid
sleep 1
kill $pid
gone $pid
umount /mnt
try e2fsck -fn $image
are_there "stetfs cat $image:/" 10

echo "== without flushes, write-through"
serve below $image --write-through
[ "$(cat /sys/block/${dev#/dev/}/queue/write_cache)" = "write through" ] || fail "it has a cache"
mount -t ext4 -o data=journal,nobarrier,journal_async_commit $dev /mnt
for n in 11 12 13; do try put $n; done
kill -9 $pid
umount /mnt
stetfs fsck -y $image
try e2fsck -fn $image
are_there "stetfs cat $image:/" 13

echo "== a part of NAND"
stetfs nand create /tmp/part.nand >/dev/null
serve nand export /tmp/part.nand
dd if=/tmp/expected of=$dev conv=fsync 2>/dev/null
dd if=$dev bs=1000 count=1 2>/dev/null | cmp -s -n 1000 - /tmp/expected || fail "the part"
kill $pid
gone $pid
dmesg | grep 'INFO: task\|BUG:\|WARNING:' && fail "the kernel complains"
[ $failed = 0 ] || cat /tmp/log
over
INIT
run_to_end
