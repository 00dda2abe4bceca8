# Virtual machines with our programs in them or on a device of ours, for mtd.sh, ublk.sh, guest.sh, debian.sh and below-kills.sh, which source
# this file. By software emulation, so that no KVM is needed. They set `name`; here come the command, built (`stetfs`), a directory for it all
# (`work`), and the functions below.
#
# The kernel is Debian's: that of the package linux-image-amd64, downloaded once. STETFS_KERNEL=DIR names an unpacked one
# (DIR/boot/vmlinuz-*, DIR/lib/modules/*).

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/$name
mkdir -p "$work"
${CARGO:-cargo} build --locked -p stetfs-cli
stetfs=$target/debug/stetfs
patience=${STETFS_GUEST_TIMEOUT:-600}
server='' machine=''
trap 'for pid in $machine $server; do kill -9 "$pid" 2>/dev/null || true; done' EXIT

# Finds the kernel, in which `vmlinuz` is.
find_kernel() {
    local package
    kernel=${STETFS_KERNEL:-$target/kernel}
    if ! compgen -G "$kernel/boot/vmlinuz-*" >/dev/null; then
        package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
        [ -n "$package" ] || { echo "$name: apt knows no linux-image-amd64; name a kernel with STETFS_KERNEL" >&2; exit 1; }
        mkdir -p "$(dirname "$kernel")"
        (cd "$(dirname "$kernel")" && apt-get -q download "$package" && dpkg-deb -x "$package"_*.deb kernel && rm "$package"_*.deb)
    fi
    vmlinuz=$(compgen -G "$kernel/boot/vmlinuz-*" | head -n 1)
}

# Makes $work/initramfs: a busybox, and the modules that are named, in the order in which they need each other; those that the kernel does not
# have as files are in it. Those behind `--` are only put into /modules. $work/root may have more already. The script on the standard input
# goes on.
pack_initramfs() {
    local root=$work/root all="$*" module found
    mkdir -p "$root"/{bin,dev,proc,sys,tmp,mnt,modules}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for module in ${all/--/}; do
        found=$(find "$kernel" -name "$module.ko*" -print -quit)
        case $found in
        *.xz) xz -dc "$found" >"$root/modules/$module.ko" ;;
        ?*) cp "$found" "$root/modules/" ;;
        esac
    done
    cat >"$root/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin RUST_BACKTRACE=1
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in ${all%%--*}; do [ ! -e /modules/\$module.ko ] || insmod /modules/\$module.ko; done
failed=0
fail() { echo "FAILED: \$*"; failed=1; }
try() { echo "+ \$*"; "\$@" || fail "\$*"; }
refuse() { echo "+ ! \$*"; ! "\$@" || fail "it should have been refused: \$*"; }
over() { echo "$name: exit \$failed"; poweroff -f; }
INIT
    cat >>"$root/init"
    chmod +x "$root/init"
    (cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initramfs"
}

# Puts programs into $work/root/bin, without their symbols, and their libraries, at the same paths as here.
put_programs() {
    local root=$work/root program library
    mkdir -p "$root/bin"
    for program; do
        cp "$program" "$root/bin/"
        strip "$root/bin/${program##*/}"
    done
    for library in $(ldd "$@" | grep -o '/[^ :]*\.so[^ :]*' | sort -u); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
}

# Runs a machine without a disk until it is over, and fails unless everything that it tried has worked.
run_to_end() {
    timeout "${STETFS_GUEST_TIMEOUT:-1800}" qemu-system-x86_64 -accel tcg -m 768 -nographic -no-reboot -nodefaults -serial stdio -kernel "$vmlinuz" \
        -initrd "$work/initramfs" -append "console=ttyS0 quiet panic=-1 no_timer_check" </dev/null | tee "$work/console" || true
    grep -q "^$name: exit 0" "$work/console" || { echo "$name: failed; what the machine printed is in $work/console" >&2; exit 1; }
}

# An initramfs for a machine with a disk. When that is there, the script on the standard input goes on.
make_initramfs() {
    find_kernel
    rm -rf "$work/root"
    pack_initramfs virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk crc16 crc32c_generic mbcache jbd2 ext4 < <(
        echo 'while [ ! -b /dev/vda ]; do sleep 1; done'
        cat
    )
}

fail() {
    echo "$name: $*; the machine's console is in $work/console, the server's words in $work/server" >&2
    exit 1
}

# Starts the server of $image by $how at $socket, and waits until it serves.
serve() {
    "$stetfs" below --foreground "$image" --as "$how:$socket" 2>>"$work/server" &
    server=$!
    for _ in $(seq 600); do
        # A server that was killed has left the socket.
        grep -q "kill $server\$" "$work/server" && return
        kill -0 "$server" 2>/dev/null || fail "the server has ended"
        sleep 0.1
    done
    fail "no server"
}

# Starts a machine, with these words for its kernel.
boot() {
    local disk
    case $how in
    nbd) disk=(-drive "file=nbd+unix:///?socket=$socket,format=raw,if=virtio") ;;
    vhost-user) # The server shares the machine's memory.
        disk=(-object memory-backend-memfd,id=mem,size=512M,share=on -machine memory-backend=mem
            -chardev "socket,id=disk,path=$socket" -device vhost-user-blk-pci,chardev=disk)
        ;;
    *) fail "there is no way $how to a machine" ;;
    esac
    : >"$work/console"
    qemu-system-x86_64 -accel tcg -m 512 -display none -no-reboot -nodefaults -serial "file:$work/console" -kernel "$vmlinuz" \
        -initrd "$work/initramfs" -append "console=ttyS0 quiet panic=-1 no_timer_check $*" "${disk[@]}" </dev/null 2>>"$work/server" &
    machine=$!
}

# Waits until the machine has said a line of this pattern so many times.
wait_for() {
    local from=$SECONDS
    while [ "$(grep -c "$1" "$work/console")" -lt "$2" ]; do
        kill -0 "$machine" 2>/dev/null || fail "the machine has ended"
        [ $((SECONDS - from)) -lt "$patience" ] || fail "the machine does not say $1"
        sleep 0.1
    done
}

# The number in the last line that begins so.
said() {
    sed -n "s/^guest: $1 \([0-9]*\)\r*\$/\1/p" "$work/console" | tail -n 1
}

# Ends these processes at once, in this order.
kill_now() {
    kill -9 "$@"
    wait "$@" 2>/dev/null || true
}
