#!/usr/bin/env bash
# Makes what is given away of a release, each kind from the archive of the sources alone: the same commit gives the same bytes.
#
#   scripts/dist.sh [source|archive|deb|wheel|rpm|sums]...      (make dist)       all, if none is named
#
#   source    stetfs-VERSION.tar.xz, and stetfs-VERSION-vendored.tar.xz with all crates, which builds without a network
#   archive   stetfs-VERSION-ARCH-linux.tar.xz: the command as one static program, man pages, completions, installer
#   deb       the packages for Debian 12 and later, built from the vendored sources
#   wheel     for pip: the command, and the module `stetfs`
#   rpm       the static program as a package
#   sums      SHA256SUMS of all, and the bill of materials (CycloneDX)
#
# What is made is put into target/packages. DIST_ARCHS="x86_64 aarch64" says for which processors; without it, for this one, and for aarch64 where
# its tools are. A kind whose tools are not installed fails and names them.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$target/packages
work=$target/packages-work
musl_arm=/usr/include/aarch64-linux-musl
archs=${DIST_ARCHS:-$(uname -m)}
# For the other processor too, where its tools are.
if [ -z "${DIST_ARCHS:-}" ] && [ "$archs" = x86_64 ] && command -v aarch64-linux-gnu-gcc >/dev/null && [ -d "$musl_arm" ] &&
    [ -d "$(rustc --print sysroot)/lib/rustlib/aarch64-unknown-linux-musl" ]; then
    archs="x86_64 aarch64"
fi
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=stetfs-$version
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
# What cargo builds: the sources of the archive, with no path of this machine in a program.
export CARGO_TARGET_DIR=$target
export RUSTFLAGS="--remap-path-prefix=$target=/target --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo --remap-path-prefix=$work/$name=/stetfs"
# Static programs are linked by Rust's own linker: functions that come to the same code are one, and relocations take a bit each, not 24 bytes.
RUSTFLAGS+=" -Clink-arg=--icf=all -Clink-arg=--pack-dyn-relocs=relr"
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
mkdir -p "$out" "$work"

# Does $1, unless this run has done it.
declare -A done=()
once() {
    [ -z "${done[$1]:-}" ] || return 0
    "$1"
    done[$1]=yes
}

# An archive of directory $2 (in $1) with an order, owners, modes and times that do not depend on the machine.
archive() {
    tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mode=u+w,go-w --mtime="@$SOURCE_DATE_EPOCH" --format=gnu -c "$2" | xz -6 -T1
}

needs() {
    local program lacking=()
    for program in "$@"; do
        command -v "${program%%:*}" >/dev/null || lacking+=("${program#*:}")
    done
    [ ${#lacking[@]} -eq 0 ] || { echo "dist: install first: ${lacking[*]}" >&2; exit 1; }
}

# The sources of the last commit, in $work/$name. Files that are there and the same keep their times, and changed ones get the time of now:
# cargo compares times, so it builds what has changed, also when an older commit follows a newer one.
needs git:git xz:xz-utils rsync:rsync
rm -rf "$work/fresh"
mkdir -p "$work/fresh"
git archive --format=tar HEAD | tar -C "$work/fresh" -x
sync_tree() { rsync -rlpc --delete "$1/" "$2/"; }
sync_tree "$work/fresh" "$work/$name"

# The same with all crates, in $work/vendored/$name.
vendor() {
    rm -rf "$work/vendored"
    mkdir -p "$work/vendored"
    cp -a "$work/$name" "$work/vendored/$name"
    (cd "$work/vendored/$name" && mkdir -p .cargo && "$cargo" vendor --locked --versioned-dirs vendor >.cargo/config.toml 2>"$work/vendor.log") ||
        { cat "$work/vendor.log" >&2; exit 1; }
}

make_source() {
    once vendor
    archive "$work" "$name" >"$out/$name.tar.xz"
    archive "$work/vendored" "$name" >"$out/$name-vendored.tar.xz"
}

# The static command for processor $1; prints where it is.
static_command() {
    local triple=$1-unknown-linux-musl
    case $1 in
    x86_64) needs musl-gcc:musl-tools ;;
    aarch64)
        needs aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu
        # musl's headers with Debian's compiler for the other processor; Rust brings musl itself.
        [ -d "$musl_arm" ] || { echo "dist: install first: musl-dev:arm64" >&2; exit 1; }
        export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
        export CFLAGS_aarch64_unknown_linux_musl="-nostdinc -isystem $musl_arm -isystem $(aarch64-linux-gnu-gcc -print-file-name=include)"
        ;;
    esac
    [ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ] || { echo "dist: install first: rustup target add $triple" >&2; exit 1; }
    (cd "$work/$name" && "$cargo" build --profile dist --locked -p stetfs-cli --target "$triple" >&2)
    echo "$target/$triple/dist/stetfs"
}

# The tree of an archive for processor $1 in $work/$2: as below a prefix, with the installer and the documents beside. The pages and
# completions come from the command of this machine.
tree() {
    local tree=$work/$2 own program
    own=$(static_command "$(uname -m)")
    program=$(static_command "$1")
    rm -rf "$tree"
    PREFIX=/ DESTDIR=$tree SBINDIR=/sbin "$work/$name/scripts/install.sh" "$(dirname "$own")" >/dev/null
    # The links of mount(8) are made where it is installed.
    rm -rf "$tree/sbin"
    cp "$program" "$tree/bin/stetfs"
    (cd "$work/$name" && cp scripts/install.sh README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$tree/")
}

make_archive() {
    local arch
    for arch in $archs; do
        tree "$arch" "$name-$arch-linux"
        archive "$work" "$name-$arch-linux" >"$out/$name-$arch-linux.tar.xz"
    done
}

make_deb() {
    needs dpkg-buildpackage:dpkg-dev dh:debhelper cc:build-essential
    local build=$work/deb
    once vendor
    mkdir -p "$build"
    rm -f "$build"/*_* "$out"/*.deb
    sync_tree "$work/vendored/$name" "$build/$name"
    mv "$build/$name/packaging/debian" "$build/$name/debian"
    (cd "$build/$name" && env CARGO_NET_OFFLINE=true CARGO_TARGET_DIR="$target/deb" \
        RUSTFLAGS="--remap-path-prefix=$build/$name=/stetfs --remap-path-prefix=$target=/target" \
        dpkg-buildpackage -b -us -uc --no-check-builddeps)
    cp "$build"/*.deb "$out/"
}

make_wheel() {
    needs maturin:"maturin (pip install maturin)"
    local arch
    for arch in $archs; do
        static_command "$arch" >/dev/null
        (cd "$work/$name/packaging/python" && maturin build --profile dist --locked --target "$arch-unknown-linux-musl" --compatibility musllinux_1_2 manylinux2014 \
            --target-dir "$target" --out "$out")
    done
}

make_rpm() {
    needs rpmbuild:rpm
    local arch
    once make_archive
    for arch in $archs; do
        rpmbuild -bb --target "$arch" --define "_topdir $work/rpm" --define "_sourcedir $out" --define "version_ $version" \
            --define "_rpmdir $work/rpm/RPMS" --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" \
            --define "_buildhost stetfs" "$work/$name/packaging/rpm/stetfs.spec" >"$work/rpm.log" 2>&1 || { cat "$work/rpm.log" >&2; exit 1; }
        cp "$work/rpm/RPMS/$arch"/*.rpm "$out/"
    done
}

make_sums() {
    local wheels=("$out/stetfs-$version"-*.whl)
    [ -e "${wheels[0]}" ] || make_wheel
    wheels=("$out/stetfs-$version"-*.whl)
    # maturin lists what is in the program.
    needs unzip:unzip
    unzip -p "${wheels[0]}" '*.cyclonedx.json' >"$out/$name.cdx.json"
    (cd "$out" && rm -f SHA256SUMS && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
}

[ $# -gt 0 ] || set -- source archive deb wheel rpm sums
for kind in "$@"; do
    case $kind in
    source | archive | deb | wheel | rpm | sums) ;;
    *) echo "dist: no such kind: $kind (source, archive, deb, wheel, rpm, sums)" >&2; exit 2 ;;
    esac
    echo "-- $kind"
    once "make_$kind"
done
ls -l "$out"
