#!/usr/bin/env bash
# Tests what scripts/dist.sh made, each kind as its users install it and away from the sources: the packages in clean roots of Debian 12 and 13
# without a network, the archive and the wheel beside them. Needs root; downloads two roots of Debian once (debootstrap).
#
#   scripts/dist-test.sh [deb|archive|wheel|rpm|lint]...      (make dist-test)       all, if none is named
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

test_deb() {
    local suite before
    for suite in $suites; do
        fresh "$suite"
        before=$(listed)
        mkdir "$root/tmp/debs"
        cp "$out"/*.deb "$root/tmp/debs/"
        inside sh -c 'dpkg -i /tmp/debs/*.deb' >/dev/null
        inside /smoke
        inside stetfs-lab --version
        # Again over itself, as an upgrade does.
        inside sh -c 'dpkg -i /tmp/debs/*.deb' >/dev/null
        inside sh -c 'dpkg --purge stetfs-lab libstetfs-dev stetfs libstetfs0.1' >/dev/null
        diff <(echo "$before") <(listed) || { echo "dist-test: $suite: the packages leave this behind" >&2; exit 1; }
        echo "deb: $suite: installed, works, upgraded, gone without a trace"
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

[ $# -gt 0 ] || set -- lint deb archive wheel rpm
for kind in "$@"; do
    case $kind in
    deb | archive | wheel | rpm | lint) "test_$kind" ;;
    *) echo "dist-test: no such kind: $kind (lint, deb, archive, wheel, rpm)" >&2; exit 2 ;;
    esac
done
