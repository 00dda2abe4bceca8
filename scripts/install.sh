#!/usr/bin/env bash
# Installs the command and what belongs to it, or takes it away. The lab and the library are installed if they were built.
#
#   PREFIX=/usr/local LIBDIR=/usr/local/lib DESTDIR= SBINDIR=/sbin scripts/install.sh path/to/programs
#   PREFIX=/usr/local LIBDIR=/usr/local/lib DESTDIR= SBINDIR=/sbin scripts/install.sh --links        only the helpers of mount(8)
#   PREFIX=/usr/local LIBDIR=/usr/local/lib DESTDIR= SBINDIR=/sbin scripts/install.sh --remove
set -euo pipefail

prefix=${PREFIX:-/usr/local}
dest=${DESTDIR:-}
sbin=${SBINDIR:-/sbin}
bin=$dest$prefix/bin
libdir=${LIBDIR:-$prefix/lib}
lib=$dest$libdir
include=$dest$prefix/include
man=$dest$prefix/share/man
bash_completion=$dest$prefix/share/bash-completion/completions
zsh_completion=$dest$prefix/share/zsh/site-functions
fish_completion=$dest$prefix/share/fish/vendor_completions.d
units=$dest$prefix/lib/systemd
unit='stetfs@.service'
limits=$unit.d/hardening.conf
# mount -t fuse.stetfs runs /sbin/mount.fuse.stetfs; umount of such a mount runs /sbin/umount.fuse.stetfs, which
# waits for the image. Mounts of a block device are of the type fuseblk.stetfs; mount(8) and umount(8) look for helpers of that
# name when they are remounted or unmounted. All are this one program, told apart by the name it is called by.
helpers=()
for type in fuse.stetfs fuseblk.stetfs; do
    helpers+=("$dest$sbin/mount.$type" "$dest$sbin/umount.$type")
done
# mount -t stetfs, for short.
helpers+=("$dest$sbin/mount.stetfs")
# The pages of those that are called otherwise: `NAME:PAGE`.
aliases=(mount.stetfs:mount.fuse.stetfs mount.fuseblk.stetfs:mount.fuse.stetfs umount.fuseblk.stetfs:umount.fuse.stetfs)

link_helpers() {
    local helper
    for helper in "${helpers[@]}"; do
        if install -d "$(dirname "$helper")" 2>/dev/null && ln -sfn "$prefix/bin/stetfs" "$helper" 2>/dev/null; then
            echo "installed $helper"
        else
            echo "not installed (no permission): $helper; as root: ln -s $prefix/bin/stetfs $helper" >&2
        fi
    done
}

if [ "${1:-}" = --links ]; then
    link_helpers
    exit 0
fi
if [ "${1:-}" = --remove ]; then
    rm -fv -- "$bin/stetfs" "$bin/stetfs-lab" "$lib"/libstetfs.so{,.[0-9]*} "$lib/pkgconfig/stetfs.pc" "$include"/stetfs{,_ioctl}.h \
        "$man"/man1/stetfs.1 "$man"/man1/stetfs-*.1 "$man"/man8/{u,}mount.fuse{,blk}.stetfs.8 "$man/man8/mount.stetfs.8" "$units"/{system,user}/"$unit" "$units/system/$limits" \
        "$bash_completion/stetfs" "$zsh_completion/_stetfs" "$fish_completion/stetfs.fish" "${helpers[@]}"
    rmdir --ignore-fail-on-non-empty "$units/system/$unit.d" 2>/dev/null || true
    exit 0
fi

programs=${1:?usage: scripts/install.sh path/to/programs | --links | --remove}
program=$programs/stetfs
# Without the sections for debuggers, which are most of a file.
install -D --strip -m755 "$program" "$bin/stetfs"
installed=("$bin/stetfs")

# For programs in C, and for SQLite's .load. A file for each version; the dynamic linker looks for the soname, cc for
# what -lstetfs means.
install_library() {
    local ffi version library soname name shown
    ffi=$(dirname "$0")/../crates/ffi
    version=$("$program" --version | awk '{ print $2; exit }')
    library=$lib/libstetfs.so.$version
    install -D --strip -m644 "$programs/libstetfs_ffi.so" "$library"
    soname=$(LC_ALL=C readelf -d "$library" | sed -n 's/.*Library soname: \[\(.*\)\]$/\1/p')
    for name in "${soname:?"$library has none"}" libstetfs.so; do
        ln -sfn "${library##*/}" "$lib/$name"
    done
    # So that it is found at once.
    [ -n "$dest" ] || PATH=$PATH:/sbin:/usr/sbin ldconfig 2>/dev/null || true
    install -d "$include" "$lib/pkgconfig"
    install -m644 "$ffi"/include/*.h "$include/"
    shown=${libdir/#"$prefix"/'${exec_prefix}'}
    # As cargo-c makes it of the same Cargo.toml, but for what a static library would need.
    cat >"$lib/pkgconfig/stetfs.pc" <<EOF
prefix=$prefix
exec_prefix=\${prefix}
libdir=$shown
includedir=\${prefix}/include

Name: stetfs
Description: $(sed -n 's/^description = "\(.*\)"$/\1/p' "$ffi/Cargo.toml")
Version: $version
Libs: -L\${libdir} -lstetfs
Cflags: -I\${includedir}
EOF
    installed+=("$library")
}
[ ! -e "$programs/libstetfs_ffi.so" ] || install_library

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
"$program" man "$pages"
if [ -e "$programs/stetfs-lab" ]; then
    install -D --strip -m755 "$programs/stetfs-lab" "$bin/stetfs-lab"
    installed+=("$bin/stetfs-lab")
    "$programs/stetfs-lab" --man-page "$pages/stetfs-lab.1"
fi
install -d "$man/man1" "$man/man8"
install -m644 "$pages"/*.1 "$man/man1/"
install -m644 "$pages"/*.8 "$man/man8/"
for alias in "${aliases[@]}"; do
    echo ".so man8/${alias#*:}.8" >"$man/man8/${alias%%:*}.8"
done

install -d "$bash_completion" "$zsh_completion" "$fish_completion"
"$program" completions bash >"$bash_completion/stetfs"
"$program" completions zsh >"$zsh_completion/_stetfs"
"$program" completions fish >"$fish_completion/stetfs.fish"

# For the system, and for a user's own manager.
for manager in system user; do
    install -D -m644 "$(dirname "$0")/../packaging/systemd/$unit" "$units/$manager/$unit"
done
install -D -m644 "$(dirname "$0")/../packaging/systemd/$limits" "$units/system/$limits"

link_helpers
echo "installed ${installed[*]}"
