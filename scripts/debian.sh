#!/usr/bin/env bash
# Debian whose root file system is on a volume below which a scheme commits: systemd starts on it, files are written and packages are
# installed, each durable before the next. The machine and the server are killed together, then the machine alone; each time Debian boots
# again and finds everything that was confirmed. At last it is shut down, and the image is a plain sound one. By software emulation, so it
# needs no KVM; some minutes.
#
#   scripts/debian.sh [HOW...]      (make test-debian)       HOW: vhost-user (default), nbd
#
# As root. debootstrap gets Debian once, 240 MB. scripts/machine.sh has the machine.
set -euo pipefail

name=debian
. "$(dirname "$0")/machine.sh"

system=$work/system
if [ ! -e "$system.done" ]; then
    rm -rf "$system"
    debootstrap --variant=minbase --include=systemd-sysv bookworm "$system" >"$work/debootstrap"
    touch "$system.done"
fi
cat >"$system/usr/local/sbin/work" <<'WORK'
#!/bin/bash
# Looks whether everything is there that was done before, and goes on.
exec >/dev/ttyS0 2>&1
content() { yes "file $1" | head -c $((1000 + 997 * $1)); }
n=0
while [ -e /srv/$n ]; do
    content $n | cmp -s - /srv/$n || echo "guest: file $n is wrong"
    n=$((n + 1))
done
[ -z "$(dpkg --audit)" ] && dpkg --verify || echo "guest: the packages are wrong"
echo "guest: package $(dpkg-query -f '${Version}' -W step 2>/dev/null || echo 0)"
echo "guest: found $n"
if grep -q stop-here /proc/cmdline; then exec systemctl poweroff; fi
while true; do
    content $n >/run/file
    dd if=/run/file of=/srv/$n bs=64k conv=fsync status=none && sync /srv && echo "guest: confirmed $n"
    if [ $((n % 4)) = 3 ]; then
        mkdir -p /run/step/DEBIAN /run/step/usr/share/step
        printf 'Package: step\nVersion: %s\nArchitecture: all\nMaintainer: nobody <nobody>\nDescription: a step\n' $n >/run/step/DEBIAN/control
        content $n >/run/step/usr/share/step/content
        dpkg-deb -b /run/step /run/step.deb >/dev/null && dpkg -i /run/step.deb >/dev/null && echo "guest: installed $n"
    fi
    n=$((n + 1))
done
WORK
chmod +x "$system/usr/local/sbin/work"
cat >"$system/etc/systemd/system/work.service" <<'UNIT'
[Unit]
Description=Work
[Service]
ExecStart=/usr/local/sbin/work
IgnoreSIGPIPE=no
UNIT
mkdir -p "$system/etc/systemd/system/multi-user.target.wants"
ln -sf ../work.service "$system/etc/systemd/system/multi-user.target.wants/work.service"

make_initramfs <<'INIT'
mount -t ext4 -o data=journal /dev/vda /mnt || { echo "guest: no mount"; poweroff -f; }
mount --move /dev /mnt/dev
umount /proc
exec switch_root /mnt /sbin/init
INIT

installed=0
# Compares what the machine has found with what was confirmed before.
judge() {
    ! grep -q 'is wrong\|are wrong\|no mount\|I/O error\|EXT4-fs error' "$work/console" || fail "the machine complains"
    [ "$(said found)" -gt "$confirmed" ] || fail "$confirmed was confirmed, found are $(said found) files"
    [ "$(said package)" -ge "$installed" ] || fail "$installed was installed, found is $(said package)"
}

# Boots, waits until so many files are confirmed, kills the machine, with these processes before it.
run() {
    local more=$1
    shift
    boot systemd.getty_auto=0
    wait_for '^guest: confirmed' "$more"
    kill_now "$@" "$machine"
    machine=''
    [ "$confirmed" = -1 ] || judge
    confirmed=$(said confirmed)
    installed=$(said installed)
    echo "debian: $how: Debian is up, $((confirmed + 1)) files and package $installed are confirmed"
}

[ $# -gt 0 ] || set -- vhost-user
for how; do
    image=$work/disk.img socket=$work/socket confirmed=-1
    rm -f "$image" "$socket" "$work/server"
    truncate -s 1G "$image"
    mke2fs -q -t ext4 -d "$system" "$image"
    serve
    run 20 "$server"
    serve
    run 10
    boot systemd.getty_auto=0 stop-here
    wait "$machine" || fail "the machine's end"
    machine=''
    judge
    kill "$server"
    wait "$server" || fail "the server's end"
    server=''
    e2fsck -fn "$image" >/dev/null 2>&1 || fail "e2fsck"
    for n in $(seq 0 "$confirmed"); do
        cmp -s <("$stetfs" cat "$image:/srv/$n") <(yes "file $n" | head -c $((1000 + 997 * n))) || fail "file $n of $confirmed"
    done
    echo "debian: $how: three boots, $((confirmed + 1)) files and package $installed confirmed, all there"
done
