#!/usr/bin/env bash
# Makes sure that the programs which a make target runs are there.
#
#   scripts/deps.sh build|demo|test|mtd|guest|debian|bench|fuzz|programs|databases
#
# What is missing is installed with apt-get where that is possible (root on a Debian system); otherwise
# the script says exactly what to install. Programs that only some tests use are "wanted": without them
# those tests say that they are skipped. The others are "needed": without them the script fails.
set -euo pipefail

goal=${1:?usage: scripts/deps.sh build|demo|test|mtd|guest|debian|bench|fuzz|programs|databases}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# command:package or /file:package, a list for each goal
needed_build=(cc:gcc ld:binutils /usr/include/stdio.h:libc6-dev)
needed_demo=("${needed_build[@]}" mke2fs:e2fsprogs e2fsck:e2fsprogs sqlite3:sqlite3)
wanted_demo=(fusermount3:fuse3 mount:mount losetup:mount)
needed_test=("${needed_build[@]}" mke2fs:e2fsprogs e2fsck:e2fsprogs debugfs:e2fsprogs dumpe2fs:e2fsprogs)
wanted_test=(fusermount3:fuse3 mount:mount losetup:mount sfdisk:fdisk sqlite3:sqlite3 getfacl:acl getfattr:attr git:git
    tar:tar diff:diffutils fio:fio dbench:dbench postmark:postmark stress-ng:stress-ng mandoc:mandoc xz:xz-utils
    parallel:parallel pkg-config:pkg-config fakeroot:fakeroot chattr:e2fsprogs python3:python3 setpriv:util-linux qemu-io:qemu-utils nbdinfo:libnbd-bin mkfs.xfs:xfsprogs
    xfs_io:xfsprogs mkfs.btrfs:btrfs-progs umoci:umoci /lib/systemd/systemd:systemd)
needed_bench=("${needed_test[@]}" fio:fio)
wanted_bench=(fusermount3:fuse3 mount:mount losetup:mount sqlite3:sqlite3 dbench:dbench postmark:postmark
    fs_mark:fsmark stress-ng:stress-ng mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs getfattr:attr)
needed_fuzz=("${needed_build[@]}" mke2fs:e2fsprogs)
needed_mtd=("${needed_build[@]}" qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio xz:xz-utils dpkg-deb:dpkg
    apt-get:apt)
needed_guest=("${needed_mtd[@]}" mke2fs:e2fsprogs e2fsck:e2fsprogs)
needed_debian=("${needed_guest[@]}" debootstrap:debootstrap)
needed_programs=("${needed_build[@]}" mke2fs:e2fsprogs /usr/bin/python3:python3 git:git dpkg-deb:dpkg
    redis-server:redis-server redis-cli:redis-tools /usr/lib/python3/dist-packages/lmdb:python3-lmdb
    /usr/lib/python3/dist-packages/plyvel:python3-plyvel /usr/share/doc/python3-gdbm:python3-gdbm
    /usr/share/doc/librocksdb7.8:librocksdb7.8 hg:mercurial /usr/lib/postgresql:postgresql
    mariadbd:mariadb-server setpriv:util-linux sponge:moreutils node:nodejs npm:npm)
needed_databases=("${needed_build[@]}" mke2fs:e2fsprogs e2fsck:e2fsprogs setpriv:util-linux pgrep:procps
    /usr/lib/postgresql:postgresql pg_config:postgresql-common mariadbd:mariadb-server sysbench:sysbench)
wanted_programs=(fusermount3:fuse3 /usr/share/doc/python3-venv:python3-venv)
wanted_build=()
wanted_mtd=()
wanted_guest=()
wanted_debian=()
wanted_fuzz=()
wanted_databases=()

case $goal in
build | demo | test | mtd | guest | debian | bench | fuzz | programs | databases) ;;
*)
    echo "deps: no such goal: $goal" >&2
    exit 2
    ;;
esac
declare -n needed="needed_$goal" wanted="wanted_$goal"

# The packages of what is not there of "$@", each once. (`command -v` of an absolute path wants a program.)
missing() {
    local pair what
    for pair in "$@"; do
        what=${pair%%:*}
        [[ $what = /* && -e $what ]] || command -v "$what" >/dev/null 2>&1 || echo "${pair#*:}"
    done | sort -u
}

install_hint() {
    echo "deps: install with:  sudo apt-get install --no-install-recommends $*" >&2
}

if ! command -v cargo >/dev/null 2>&1; then
    echo "deps: there is no cargo on the path; install the Rust toolchain (1.95 or later), see https://rustup.rs" >&2
    exit 1
fi

mapfile -t lacking < <(missing "${needed[@]}" "${wanted[@]}")
[ ${#lacking[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "deps: installing ${lacking[*]}"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    apt-get update -qq </dev/null >"$log" 2>&1 || echo "deps: apt-get update failed: $(tail -n 1 "$log")" >&2
    if ! apt-get install -y -qq --no-install-recommends "${lacking[@]}" </dev/null >"$log" 2>&1; then
        # One package that cannot be had must not keep the others away.
        for package in "${lacking[@]}"; do
            apt-get install -y -qq --no-install-recommends "$package" </dev/null >"$log" 2>&1 ||
                echo "deps: $package could not be installed: $(tail -n 1 "$log")" >&2
        done
    fi
    hash -r
fi

mapfile -t lacking < <(missing "${wanted[@]}")
if [ ${#lacking[@]} -gt 0 ]; then
    echo "deps: not there, what uses them is skipped: ${lacking[*]}" >&2
    install_hint "${lacking[@]}"
fi
mapfile -t lacking < <(missing "${needed[@]}")
if [ ${#lacking[@]} -gt 0 ]; then
    echo "deps: needed for \"make $goal\" and not there: ${lacking[*]}" >&2
    install_hint "${lacking[@]}"
    exit 1
fi
