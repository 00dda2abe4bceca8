#!/usr/bin/env bash
# A virtual machine on a volume below which a scheme commits: Debian's kernel mounts it by its own ext4, with data=journal, writes files and
# syncs each. First the machine is killed, and the next one must find every file that was confirmed. Then server and machine are killed, and
# the image must have them after recovery. By software emulation, so it needs no KVM; a minute.
#
#   scripts/guest.sh [HOW...]      (make test-guest)       HOW: nbd (default)
#
# The kernel is found as scripts/mtd.sh finds it; STETFS_MTD_KERNEL=DIR names an unpacked one.
set -euo pipefail

cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
work=$(realpath -m "$target")/guest
mkdir -p "$work"
patience=${STETFS_GUEST_TIMEOUT:-600}

# Debian's kernel, unpacked: downloaded once.
kernel=${STETFS_MTD_KERNEL:-$(realpath -m "$target")/mtd/kernel}
if ! compgen -G "$kernel/boot/vmlinuz-*" >/dev/null; then
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
    [ -n "$package" ] || { echo "guest: apt knows no linux-image-amd64; name a kernel with STETFS_MTD_KERNEL" >&2; exit 1; }
    mkdir -p "$(dirname "$kernel")"
    (cd "$(dirname "$kernel")" && apt-get -q download "$package" && dpkg-deb -x "$package"_*.deb kernel && rm "$package"_*.deb)
fi
vmlinuz=$(compgen -G "$kernel/boot/vmlinuz-*" | head -n 1)

$cargo build --locked -p stetfs-cli
stetfs=$(realpath -m "$target")/debug/stetfs

# The machine: a busybox, and the modules in the order in which they need each other.
root=$work/root
rm -rf "$root"
mkdir -p "$root"/{bin,dev,proc,sys,mnt,modules}
cp "$(command -v busybox)" "$root/bin/busybox"
modules=(virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk crc16 crc32c_generic mbcache jbd2 ext4)
for module in "${modules[@]}"; do
    found=$(find "$kernel/lib/modules" -name "$module.ko" | head -n 1)
    # Others have it in the kernel.
    if [ -n "$found" ]; then cp "$found" "$root/modules/"; fi
done
cat >"$root/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
for module in ${modules[*]}; do [ ! -e /modules/\$module.ko ] || insmod /modules/\$module.ko; done
INIT
cat >>"$root/init" <<'INIT'
while [ ! -b /dev/vda ]; do sleep 1; done
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
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initramfs"

server='' machine=''
trap 'for pid in $machine $server; do kill -9 "$pid" 2>/dev/null || true; done' EXIT

fail() {
    echo "guest: $*; the machine's console is in $work/console, the server's words in $work/server" >&2
    exit 1
}

serve() {
    "$stetfs" below --foreground "$image" --as "$how:$socket" 2>>"$work/server" &
    server=$!
    for _ in $(seq 600); do
        [ -S "$socket" ] && return
        kill -0 "$server" 2>/dev/null || fail "the server has ended"
        sleep 0.1
    done
    fail "no server"
}

# Boots the machine and waits until it has confirmed so many files since then; gives the last one.
confirmed=-1
boot() {
    local more=$1 disk from
    case $how in
    nbd) disk=(-drive "file=nbd+unix:///?socket=$socket,format=raw,if=virtio") ;;
    esac
    : >"$work/console"
    qemu-system-x86_64 -accel tcg -m 512 -display none -no-reboot -nodefaults -serial "file:$work/console" \
        -kernel "$vmlinuz" -initrd "$work/initramfs" -append "console=ttyS0 quiet panic=-1 no_timer_check" "${disk[@]}" </dev/null &
    machine=$!
    from=$SECONDS
    while [ "$(grep -c '^guest: confirmed' "$work/console")" -lt "$more" ]; do
        kill -0 "$machine" 2>/dev/null || fail "the machine has ended"
        [ $((SECONDS - from)) -lt "$patience" ] || fail "nothing is confirmed"
        sleep 0.1
    done
}

# Kills what it is told to, the last ones together, and notes what the machine had confirmed.
cut() {
    kill -9 "$@"
    wait "$@" 2>/dev/null || true
    confirmed=$(sed -n 's/^guest: confirmed \([0-9]*\)\r*$/\1/p' "$work/console" | tail -n 1)
    ! grep -q 'is wrong\|no mount\|rror' "$work/console" || fail "the machine complains"
}

[ $# -gt 0 ] || set -- nbd
for how; do
    image=$work/disk.img socket=$work/socket
    rm -f "$image" "$socket" "$work/server"
    "$stetfs" mkfs "$image" --size 64M >/dev/null
    serve
    boot 30
    cut "$machine"
    before=$confirmed
    boot 20
    found=$(sed -n 's/^guest: found \([0-9]*\)\r*$/\1/p' "$work/console")
    [ "$found" -gt "$before" ] || fail "$before was confirmed, the next machine has found $found files"
    cut "$server" "$machine"
    machine='' server=''
    "$stetfs" fsck -y "$image" >/dev/null 2>&1 || [ $? -le 1 ] || fail "fsck"
    e2fsck -fn "$image" >/dev/null 2>&1 || fail "e2fsck"
    for n in $(seq 0 "$confirmed"); do
        cmp -s <("$stetfs" cat "$image:/$n") <(yes "file $n" | head -c $((1000 + 997 * n))) || fail "file $n of $confirmed"
    done
    echo "guest: $how: two machines, $((confirmed + 1)) files confirmed, all there"
done
