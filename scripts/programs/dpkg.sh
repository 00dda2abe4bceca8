#!/bin/sh
# dpkg: a package is unpacked over its older version, promised when dpkg returns.
# dpkg.sh setup|run|check safe|unsafe-io
verb=$1
[ "$2" = safe ] && io=--no-force-unsafe-io || io=--force-unsafe-io
root=$STETFS_DIR/root
install() {
    dpkg --root="$root" --admindir="$root/var/lib/dpkg" --log=/dev/null --force-not-root $io \
        --force-script-chrootless -i "$1" >/dev/null
}
package() {
    build=$(mktemp -d)
    mkdir -p "$build/DEBIAN" "$build/etc" "$build/usr/lib"
    printf 'Package: p\nVersion: %s\nArchitecture: all\nMaintainer: a <a@example.org>\n' "$1" \
        >"$build/DEBIAN/control"
    echo 'Description: p' >>"$build/DEBIAN/control"
    for n in 1 2; do yes "$1" | head -c 3000 >"$build/usr/lib/file$n"; done
    SOURCE_DATE_EPOCH=1700000000 dpkg-deb -Zgzip --root-owner-group -b "$build" "$2" >/dev/null
    rm -r "$build"
}
case $verb in
setup)
    mkdir -p "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/info"
    : >"$root/var/lib/dpkg/status"
    package 1 "$STETFS_DIR/1.deb" && package 2 "$STETFS_DIR/2.deb" && install "$STETFS_DIR/1.deb"
    ;;
run)
    install "$STETFS_DIR/2.deb" && echo installed >"$STETFS_MARKS"
    ;;
check)
    for n in 1 2; do
        version=$(sort -u "$root/usr/lib/file$n")
        [ "$(wc -c <"$root/usr/lib/file$n")" = 3000 ] &&
            case $version in [12]) ;; *) false ;; esac ||
            { echo "file$n is neither the old nor the new one"; exit 1; }
        ! grep -q installed "$STETFS_MARKS_FILE" || [ "$version" = 2 ] ||
            { echo "file$n is the old one, and the new package was installed"; exit 1; }
    done
    status=$(dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${Version} ${Status}' p) || exit 1
    grep -q installed "$STETFS_MARKS_FILE" || exit 0
    [ "$status" = '2 install ok installed' ] || { echo "installed, and is: $status"; exit 1; }
    ;;
esac
