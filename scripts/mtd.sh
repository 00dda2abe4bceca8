#!/usr/bin/env bash
# Runs the tests of NAND parts behind Linux's MTD layer, crates/ftl/tests/mtd.rs, and `stetfs nand` on them, in a virtual machine: Debian's
# kernel with its own nandsim, a busybox, our binaries with their libraries. By software emulation, so it needs no KVM; minutes.
#
#   scripts/mtd.sh          (make test-mtd)
#
# scripts/machine.sh has the machine.
set -euo pipefail

name=mtd
. "$(dirname "$0")/machine.sh"
find_kernel
tests=$(${CARGO:-cargo} test --locked -p stetfs-ftl --test mtd --no-run --message-format=json |
    sed -n 's/.*"name":"mtd".*"executable":"\([^"]*\)".*/\1/p')
[ -x "$tests" ] || { echo "mtd: cargo built no test" >&2; exit 1; }

rm -rf "$work/root"
cp "$tests" "$work/tests"
put_programs "$stetfs" "$work/tests"

# nandsim comes with its options, later.
pack_initramfs bch mtd nandcore nand -- nandsim <<'INIT'
# A part of nandsim: its ID bytes, and options.
part() {
    rmmod nandsim 2>/dev/null
    echo "== nandsim $*"
    insmod /modules/nandsim.ko do_delays=0 "$@" || fail "nandsim $*"
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
over
INIT
run_to_end
