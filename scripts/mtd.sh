#!/usr/bin/env bash
# Runs the tests of NAND parts behind Linux's MTD layer, crates/ftl/tests/mtd.rs, and `stetfs nand` on them, in a virtual machine: Debian's
# kernel with its own nandsim, a busybox, our binaries with their libraries. By software emulation, so it needs no KVM; minutes.
#
#   scripts/mtd.sh          (make test-mtd)
#
# The kernel is that of Debian's package linux-image-amd64, downloaded once into the target directory; STETFS_MTD_KERNEL=DIR names an unpacked
# one (DIR/boot/vmlinuz-*, DIR/lib/modules/*).
set -euo pipefail

cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
work=$(realpath -m "$target")/mtd
mkdir -p "$work"

kernel=${STETFS_MTD_KERNEL:-$work/kernel}
if ! compgen -G "$kernel/boot/vmlinuz-*" >/dev/null; then
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
    [ -n "$package" ] || { echo "mtd: apt knows no linux-image-amd64; name a kernel with STETFS_MTD_KERNEL" >&2; exit 1; }
    (cd "$work" && apt-get -q download "$package" && dpkg-deb -x "$package"_*.deb kernel && rm "$package"_*.deb)
fi
image=$(compgen -G "$kernel/boot/vmlinuz-*" | head -n 1)

$cargo build --locked -p stetfs-cli
tests=$($cargo test --locked -p stetfs-ftl --test mtd --no-run --message-format=json |
    sed -n 's/.*"name":"mtd".*"executable":"\([^"]*\)".*/\1/p')
[ -x "$tests" ] || { echo "mtd: cargo built no test" >&2; exit 1; }

root=$work/root
rm -rf "$root"
mkdir -p "$root"/{bin,dev,proc,sys,tmp,modules}
cp "$(command -v busybox)" "$root/bin/busybox"
cp "$target/debug/stetfs" "$root/bin/stetfs"
cp "$tests" "$root/bin/tests"
strip "$root/bin/stetfs" "$root/bin/tests"
# With their libraries, at the same paths.
for library in $(ldd "$root/bin/stetfs" "$root/bin/tests" | grep -o '/[^ :]*' | grep -v "^$root" | sort -u); do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
for module in bch mtd nandcore nand nandsim; do
    cp "$(find "$kernel/lib/modules" -name "$module.ko" | head -n 1)" "$root/modules/"
done

cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin RUST_BACKTRACE=1
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in bch mtd nandcore nand; do insmod /modules/$module.ko || echo "no $module"; done

failed=0
try() {
    echo "+ $*"
    "$@" || { echo "FAILED: $*"; failed=1; }
}
refuse() {
    echo "+ ! $*"
    "$@" && { echo "FAILED: it should have been refused: $*"; failed=1; }
}
# A part of nandsim: its ID bytes, and options.
part() {
    rmmod nandsim 2>/dev/null
    echo "== nandsim $*"
    insmod /modules/nandsim.ko do_delays=0 "$@" || { echo "FAILED: nandsim $*"; failed=1; }
    cat /proc/mtd
}
run() {
    try env STETFS_MTD=/dev/mtd0 "$@" tests --test-threads 1 --nocapture
}

# 128 MiB in pages of 2 KiB, of which 72 erase blocks are used.
big=id_bytes=0x20,0xa1,0x00,0x15
part $big parts=72 badblocks=20
refuse stetfs nand check /dev/mtd0
try stetfs nand create /dev/mtd0
refuse stetfs nand create /dev/mtd0
try stetfs nand create --force -o 20 /dev/mtd0
try stetfs nand info /dev/mtd0
try stetfs nand check /dev/mtd0
try stetfs nand wear /dev/mtd0
run STETFS_MTD_BAD=20
part $big parts=72 bitflips=1
run STETFS_MTD_FLIPS=1
part $big parts=72 bch=4
run
# 512-byte pages; and a code that leaves too little.
part id_bytes=0x20,0x33
try env STETFS_MTD_SMALL=/dev/mtd0 tests what_does_not_fit
refuse stetfs nand info /dev/mtd0
part $big bch=8
try env STETFS_MTD_SMALL=/dev/mtd0 tests what_does_not_fit
echo "stetfs-mtd: exit $failed"
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initramfs"

log=$work/log
timeout "${STETFS_MTD_TIMEOUT:-1800}" qemu-system-x86_64 -accel tcg -m 768 -nographic -no-reboot -nodefaults -serial stdio \
    -kernel "$image" -initrd "$work/initramfs" -append "console=ttyS0 quiet panic=-1 no_timer_check" </dev/null | tee "$log" || true
if ! grep -q '^stetfs-mtd: exit 0' "$log"; then
    echo "mtd: failed; what the machine printed is in $log" >&2
    exit 1
fi
