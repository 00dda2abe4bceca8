#!/usr/bin/env bash
# Tests what scripts/dist.sh made, each kind as its users install it and away from the sources: the packages in clean roots of Debian 12 and 13
# without a network, the archive and the wheel beside them. Needs root; downloads two roots of Debian once (debootstrap).
#
#   scripts/dist-test.sh [deb|archive|wheel|rpm|lint]...      (make dist-test)       these, if none is named
#   scripts/dist-test.sh foreign      the static program for aarch64, under qemu-user
#   scripts/dist-test.sh crates       the command by `cargo install`, from the crates as they would be published
#   scripts/dist-test.sh same         all is built again elsewhere, from a fresh clone: the same bytes (as long as `make dist`; DIST_SAME="wheel deb")
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$target/packages
roots=$target/packages-roots
smoke=$PWD/packaging/debian/tests/smoke
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
suites=${DIST_SUITES:-bookworm trixie}
mkdir -p "$roots"
[ "$(id -u)" -eq 0 ] || { echo "dist-test: chroot and debootstrap need root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "dist-test: install first: debootstrap" >&2; exit 1; }

# A clean root of suite $1 in $root, which is removed again. What is mounted in it lies below its /tmp.
root=
clean() {
    [ -n "$root" ] || return 0
    ! mountpoint -q "$root/dev" || umount -R "$root/dev" "$root/proc"
    rm -rf --one-file-system "$root"
    root=
}
trap clean EXIT
fresh() {
    clean
    if [ ! -e "$roots/$1.tar" ]; then
        rm -rf "${roots:?}/$1"
        debootstrap --variant=minbase --include=e2fsprogs "$1" "$roots/$1" http://deb.debian.org/debian >"$roots/$1.log" 2>&1 ||
            { tail -n 5 "$roots/$1.log" >&2; exit 1; }
        tar -C "$roots/$1" -cf "$roots/$1.tar" .
        rm -rf "${roots:?}/$1"
    fi
    root=$(mktemp -d "$roots/$1.XXXXXX")
    tar -C "$root" -xf "$roots/$1.tar"
    mount --rbind /dev "$root/dev"
    mount --make-rslave "$root/dev"
    mount -t proc proc "$root/proc"
    install -m755 "$smoke" "$root/smoke"
}
# In the root and without a network.
inside() { unshare --net chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
# Every path of the root, without what dpkg itself writes and what a run of programs leaves.
listed() { (cd "$root" && find . -xdev \( -path ./dev -o -path ./proc -o -path ./tmp -o -path ./var/lib/dpkg -o -path ./var/cache -o -path ./var/log -o -path ./run \) -prune -o -print | sort); }

# In $root/tmp/old, packages of an earlier version: the same with another number, and with a file that the new ones do not have.
older() {
    local deb dir
    mkdir -p "$root/tmp/old"
    for deb in "$out"/*.deb; do
        dir=$(mktemp -d "$root/tmp/unpacked.XXXXXX")
        dpkg-deb -R "$deb" "$dir"
        sed -i "s/$version-[0-9a-z]*/0.0.1-0upstream1/" "$dir/DEBIAN/control"
        echo old >"$dir/usr/share/doc/$(dpkg-deb -f "$deb" Package)/old"
        dpkg-deb --root-owner-group -b "$dir" "$root/tmp/old/$(basename "$deb")" >/dev/null
        rm -rf "$dir"
    done
}
# Units are read from the root by this machine's systemd; what they refer to must be there.
units() {
    command -v systemd-analyze >/dev/null || { echo "dist-test: install first: systemd" >&2; exit 1; }
    local unit=lib/systemd/system/stetfs@.service
    cmp "$root/usr/$unit" "$root/usr/lib/systemd/user/stetfs@.service"
    mkdir -p "$root/tmp/units"
    # The command and the manual are looked for in the root of this machine.
    sed "s|=stetfs |=$root/usr/bin/stetfs |" "$root/usr/$unit" >"$root/tmp/units/stetfs@.service"
    cp -r "$root/usr/$unit.d" "$root/tmp/units/"
    systemd-analyze --man=no verify "$root/tmp/units/stetfs@.service"
}

test_deb() {
    local suite before middle after
    for suite in $suites; do
        fresh "$suite"
        before=$(listed)
        mkdir "$root/tmp/debs"
        cp "$out"/*.deb "$root/tmp/debs/"
        older
        # A volume that is mounted stays mounted while the packages are upgraded and removed.
        inside sh -c 'dpkg -i /tmp/old/*.deb && mkdir /tmp/mnt && stetfs mkfs /tmp/disk.img --size 64M && stetfs mount /tmp/disk.img /tmp/mnt' >/dev/null 2>&1
        inside sh -c 'dpkg -i /tmp/debs/*.deb' >/dev/null
        [ ! -e "$root/usr/share/doc/stetfs/old" ]
        inside sh -c 'echo text >/tmp/mnt/file && sync /tmp/mnt/file && stetfs umount /tmp/mnt && test "$(stetfs cat /tmp/disk.img:/file)" = text'
        inside /smoke
        inside stetfs-lab --version
        units
        inside sh -c 'dpkg --remove stetfs-lab libstetfs-dev stetfs libstetfs0.1' >/dev/null
        middle=$(listed)
        inside sh -c 'dpkg -i /tmp/debs/*.deb && dpkg --purge stetfs-lab libstetfs-dev stetfs libstetfs0.1' >/dev/null
        for after in "$middle" "$(listed)"; do
            diff <(echo "$before") <(echo "$after") || { echo "dist-test: $suite: the packages leave this behind" >&2; exit 1; }
        done
        echo "deb: $suite: upgraded under a mount, works, removed, purged without a trace"
    done
}

test_archive() {
    local suite
    for suite in $suites; do
        fresh "$suite"
        tar -C "$root/usr/local" --strip-components=1 -xf "$out/stetfs-$version-$(uname -m)-linux.tar.xz"
        inside /usr/local/install.sh --links >/dev/null
        inside /smoke
        echo "archive: $suite: works"
    done
}

test_wheel() {
    local dir
    dir=$(mktemp -d)
    python3 -m venv "$dir/venv"
    "$dir/venv/bin/pip" install -q --no-index "$out"/stetfs-"$version"-*"$(uname -m)"*.whl
    (cd "$dir" && env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin venv/bin/python - <<'PY')
import stetfs

image = stetfs.Image.make("disk.img", "64M")
image.mkdir("/a/b", parents=True)
image.write("/a/b/motd", b"hello\n")
assert image.read("/a/b/motd") == b"hello\n"
assert [entry["path"] for entry in image.ls("/a/b")] == ["/a/b/motd"]
image.remove("/a", recursive=True)
image.recover()
image.check()
assert image.info()["state"] == "clean"
try:
    image.read("/gone")
    raise SystemExit("a file that is not there was read")
except stetfs.Error as error:
    assert "gone" in str(error), error
shell = ["sh", "-c", "echo a >{dir}/f; echo x >$STETFS_MARKS"]
check = 'test "$(cat {dir}/f)" = a || ! grep -q x $STETFS_MARKS_FILE'
assert stetfs.crash(shell, check)["fails"], "a missing fsync"
shell[2] = shell[2].replace("; echo x", "; sync {dir}/f; echo x")
assert not stetfs.crash(shell, check)["fails"], "a right program"
print("wheel: works")
PY
    rm -rf "$dir"
}

test_rpm() {
    command -v rpm >/dev/null || { echo "dist-test: install first: rpm" >&2; exit 1; }
    fresh bookworm
    rpm --root "$root" --dbpath /var/lib/rpm --nodeps --noscripts -i "$out"/*"$(uname -m)".rpm
    inside /smoke
    rpm --root "$root" --dbpath /var/lib/rpm -V stetfs
    echo "rpm: works"
}

test_lint() {
    command -v lintian >/dev/null || { echo "dist-test: install first: lintian" >&2; exit 1; }
    lintian --fail-on error,warning --allow-root "$out"/*.deb
    echo "lint: lintian has no error and no warning"
}

# The static program of another processor under qemu-user: all that it does without a mount, judged by this machine's e2fsck and debugfs.
test_foreign() {
    local arch found dir stetfs
    for arch in aarch64; do
        [ -e "$out/stetfs-$version-$arch-linux.tar.xz" ] || { echo "dist-test: make it first: DIST_ARCHS=\"$(uname -m) $arch\" make dist" >&2; exit 1; }
        command -v "qemu-$arch-static" >/dev/null || { echo "dist-test: install first: qemu-user-static" >&2; exit 1; }
        dir=$(mktemp -d)
        tar -C "$dir" --strip-components=1 -xf "$out/stetfs-$version-$arch-linux.tar.xz"
        found=$(file -b "$dir/bin/stetfs")
        [[ $found = *"static"* && $found = *"${arch}"* ]] || { echo "dist-test: $dir/bin/stetfs is $found" >&2; exit 1; }
        stetfs="qemu-$arch-static $dir/bin/stetfs" "${smoke%/*}/unmounted" "$dir"
        rm -rf "$dir"
        echo "foreign: $arch: works"
    done
}

# `cargo install stetfs-cli` from a registry: the crates as they would be published, beside the vendored ones, and nothing else of the sources.
test_crates() {
    local dir crate name cargo=${CARGO:-cargo}
    dir=$(mktemp -d)
    tar -C "$dir" --strip-components=1 -xf "$out/stetfs-$version-vendored.tar.xz" "stetfs-$version/vendor" "stetfs-$version/.cargo"
    CARGO_TARGET_DIR=$dir/packed "$cargo" package --quiet --locked --workspace --exclude stetfs-bench --exclude stetfs-tests --exclude stetfs-tidy \
        --exclude stetfs-fuzz --no-verify
    for crate in "$dir/packed/package"/*.crate; do
        name=$(basename "$crate" .crate)
        tar -C "$dir/vendor" -xf "$crate"
        echo "{\"files\":{},\"package\":\"$(sha256sum "$crate" | cut -d' ' -f1)\"}" >"$dir/vendor/$name/.cargo-checksum.json"
    done
    [ -e "$dir/vendor/stetfs-cli-$version/README.md" ] || { echo "dist-test: stetfs-cli has no README.md" >&2; exit 1; }
    (cd "$dir" && CARGO_HOME=$dir/.cargo CARGO_TARGET_DIR=$dir/built "$cargo" install --quiet --debug --locked --offline --root "$dir/root" stetfs-cli)
    stetfs=$dir/root/bin/stetfs "${smoke%/*}/unmounted" "$dir"
    rm -rf "$dir"
    echo "crates: installed by cargo, works"
}

# What is in target/packages has the bytes that a fresh clone elsewhere makes of the same commit, with another umask, time zone and language.
test_same() {
    local dir kinds file same=0
    read -ra kinds <<<"${DIST_SAME:-source archive wheel deb}"
    dir=$(mktemp -d)
    git clone -q . "$dir/elsewhere/a clone" 2>/dev/null
    (cd "$dir/elsewhere/a clone" && umask 077 && env -u CARGO_TARGET_DIR -u SOURCE_DATE_EPOCH TZ=Asia/Tokyo LC_ALL=C.UTF-8 scripts/dist.sh "${kinds[@]}") >"$dir/log" 2>&1 ||
        { tail -n 20 "$dir/log" >&2; exit 1; }
    for file in "$dir/elsewhere/a clone/target/packages"/*; do
        cmp "$file" "$out/${file##*/}" || { echo "dist-test: ${file##*/} has other bytes when it is built in $dir" >&2; exit 1; }
        same=$((same + 1))
    done
    rm -rf "$dir"
    echo "same: $same files of ${kinds[*]} have the same bytes again"
}

[ $# -gt 0 ] || set -- lint deb archive wheel rpm
for kind in "$@"; do
    case $kind in
    deb | archive | wheel | rpm | lint | foreign | crates | same) "test_$kind" ;;
    *) echo "dist-test: no such kind: $kind (lint, deb, archive, wheel, rpm, foreign, crates, same)" >&2; exit 2 ;;
    esac
done
