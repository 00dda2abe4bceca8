#!/usr/bin/env bash
# A virtual machine on a volume below which a scheme commits: Debian's kernel mounts it by its own ext4, with data=journal, writes files and
# syncs each. First the machine is killed, and the next one must find every file that was confirmed. Then server and machine are killed, and
# the image must have them after recovery. By software emulation, so it needs no KVM; a minute each.
#
#   scripts/guest.sh [HOW...]      (make test-guest)       HOW: nbd, vhost-user (default: each)
#
# scripts/machine.sh has the machine.
set -euo pipefail

name=guest
. "$(dirname "$0")/machine.sh"

make_initramfs <<'INIT'
mount -t ext4 -o data=journal /dev/vda /mnt || { echo "guest: no mount"; poweroff -f; }
# A file of the n-th kind.
content() { yes "file $1" | head -c $((1000 + 997 * $1)); }
n=0
while [ -e /mnt/$n ] || [ -e /mnt/done-$n ]; do
    content $n | cmp -s - /mnt/$n || echo "guest: file $n is wrong"
    n=$((n + 1))
done
echo "guest: found $n"
while true; do
    content $n >/tmp.$n
    dd if=/tmp.$n of=/mnt/$n bs=64k conv=fsync 2>/dev/null && sync /mnt && echo "guest: confirmed $n"
    rm /tmp.$n
    n=$((n + 1))
done
INIT

# Boots the machine and waits until it has confirmed so many files since then; kills it, with these processes before it.
run() {
    local more=$1
    shift
    boot
    wait_for '^guest: confirmed' "$more"
    kill_now "$@" "$machine"
    confirmed=$(said confirmed)
    ! grep -q 'is wrong\|no mount\|rror' "$work/console" || fail "the machine complains"
}

[ $# -gt 0 ] || set -- nbd vhost-user
for how; do
    image=$work/disk.img socket=$work/socket
    rm -f "$image" "$socket" "$work/server"
    "$stetfs" mkfs "$image" --size 64M >/dev/null
    serve
    run 30
    before=$confirmed
    run 20 "$server"
    found=$(said found)
    [ "$found" -gt "$before" ] || fail "$before was confirmed, the next machine has found $found files"
    machine='' server=''
    "$stetfs" fsck -y "$image" >/dev/null 2>&1 || [ $? -le 1 ] || fail "fsck"
    e2fsck -fn "$image" >/dev/null 2>&1 || fail "e2fsck"
    for n in $(seq 0 "$confirmed"); do
        cmp -s <("$stetfs" cat "$image:/$n") <(yes "file $n" | head -c $((1000 + 997 * n))) || fail "file $n of $confirmed"
    done
    echo "guest: $how: two machines, $((confirmed + 1)) files confirmed, all there"
done
