#!/usr/bin/env bash
# What happens to a kernel file system on a device of ours when memory is short: the writers in a memory cgroup that is smaller than what
# they write, and the server with them or not.
#
#   scripts/export-stress.sh STETFS [WHAT:HOW:MIB...]     needs root, FUSE, loop devices
#
# WHAT is the device: `nand` (an exported NAND part), or a scheme below the kernel's ext4, as front=kernel has it with data=journal. HOW is
# where the server is: `apart` (not in the cgroup), `shared` (in it), `resident` (in it, with --resident). MIB is the cgroup's limit.
#
# Each is one line: whether all was written and synced ("held"), the watchdog gave the device up ("given up"), or neither came to pass
# within the time ("HUNG": the script then aborts the connection itself and fails). The machine stays usable in any case: everything is
# started with a time limit, and nothing calls a global sync.
set -euo pipefail
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin LC_ALL=C

stetfs=$(realpath "${1:?usage: scripts/export-stress.sh STETFS [WHAT:HOW:MIB...]}")
shift
[ $# -gt 0 ] || set -- nand:apart:64 nand:resident:512 nand:resident:448 nand:shared:256 stet:apart:64 stet:resident:640 stet:shared:256
[ "$(id -u)" -eq 0 ] || { echo "export-stress.sh: needs root" >&2; exit 1; }
watchdog=10
limit_seconds=120

work=$(mktemp -d)
mkdir "$work/dev" "$work/mnt" "$work/ctl"
device=""
group=""
wrong=0

# The control group of either generation, and the files of its limit and of its members.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    parent=/sys/fs/cgroup limit_file=memory.max
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
else
    parent=/sys/fs/cgroup/memory limit_file=memory.limit_in_bytes
fi
[ -w "$parent" ] || { echo "export-stress.sh: no memory cgroups here ($parent)" >&2; exit 1; }
mount -t fusectl none "$work/ctl"

abort() { # gives the connection of our mount up, whatever state it is in
    local minor
    minor=$(awk -v dir="$work/dev" '$5 == dir { split($3, n, ":"); print n[2] }' /proc/self/mountinfo | tail -n 1)
    [ -z "$minor" ] || echo 1 >"$work/ctl/$minor/abort" 2>/dev/null || true
}
release() {
    timeout 60 umount "$work/mnt" 2>/dev/null || { abort; timeout 60 umount -l "$work/mnt" 2>/dev/null || true; }
    [ -z "$device" ] || timeout 20 losetup -d "$device" 2>/dev/null || true
    device=""
    sleep 0.5
    timeout 60 "$stetfs" umount "$work/dev" >/dev/null 2>&1 || { abort; timeout 20 umount -l "$work/dev" 2>/dev/null || true; }
    [ -z "$group" ] || { sleep 1; rmdir "$group" 2>/dev/null || true; }
    group=""
}
finish() {
    release
    umount "$work/ctl" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

inside() { # runs a command in the group
    bash -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$@"
}

failed() { echo "$1: status $2" >>"$work/said"; return "$2"; }
writers() { # four at once: 120 MB in three files, and small ones with an fsync each
    local n
    for n in 1 2 3; do
        dd if=/dev/zero "of=$work/mnt/big$n" bs=1M count=40 conv=fsync status=none || failed "big file $n" $? &
    done
    for n in $(seq 200); do
        dd if=/dev/zero "of=$work/mnt/small$((n % 20))" bs=3k count=5 conv=fsync status=none || failed "small file $n" $? || break
    done &
    wait -n && wait -n && wait -n && wait -n
}
export -f writers failed
export work

for case in "$@"; do
    IFS=: read -r what how mib <<<"$case"
    group=$parent/stetfs-stress-$$
    mkdir -p "$group"
    rm -f "$work/file" "$work/log"
    mode=data=journal
    if [ "$what" = nand ]; then
        "$stetfs" nand create --flawless --size 200M "$work/file" >/dev/null
        server=(nand export --snoop)
    else
        "$stetfs" mkfs --size 200M "$work/file" >/dev/null
        server=(below -o "scheme=$what" --write-through)
        mode+=,nobarrier,journal_async_commit
    fi
    echo $((mib << 20)) >"$group/$limit_file"
    # What the server says goes through a pipe to somebody outside: inside there may be no memory for a line in a file.
    server=(timeout $((limit_seconds + 120)) "$stetfs" "${server[@]}" --foreground --watchdog "$watchdog")
    [ "$how" = apart ] || server=(inside "${server[@]}")
    [ "$how" != resident ] || server+=(--resident)
    ("${server[@]}" "$work/file" "$work/dev" 2>&1 || echo "server ended with $?") | cat >"$work/log" &
    for _ in $(seq 100); do
        [ -e "$work/dev/device" ] && break
        sleep 0.1
    done
    if [ ! -e "$work/dev/device" ]; then
        echo "$what, $how, $mib MiB: the server does not fit: $(tail -n 1 "$work/log")"
        release
        continue
    fi
    device=$(timeout 20 losetup --show --find --direct-io=on --sector-size 512 "$work/dev/device")
    [ "$what" != nand ] || timeout 60 mkfs.ext4 -q -b 4096 "$device"
    timeout 60 mount -o "$mode" "$device" "$work/mnt"
    start=$SECONDS
    status=0
    : >"$work/said"
    inside timeout --kill-after=10 $limit_seconds bash -c writers &
    writer=$!
    while kill -0 $writer 2>/dev/null && [ $((SECONDS - start)) -lt $((limit_seconds + 20)) ]; do sleep 1; done
    if kill -0 $writer 2>/dev/null; then
        abort
        status=hung
    fi
    wait $writer || [ "$status" = hung ] || status=$?
    if grep -q "connection is aborted" "$work/log"; then
        echo "$what, $how, $mib MiB: given up after $((SECONDS - start)) s: $(grep -o 'a request has been stuck.*' "$work/log" | head -n 1)"
    elif [ "$status" = hung ] || [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        echo "$what, $how, $mib MiB: HUNG for $((SECONDS - start)) s (status $status)"
        wrong=1
    elif [ "$status" -ne 0 ] && grep -q "ended with 137" "$work/log"; then
        echo "$what, $how, $mib MiB: the server was killed for want of memory"
    elif [ "$status" -ne 0 ]; then
        echo "$what, $how, $mib MiB: writers failed with $status after $((SECONDS - start)) s: $(head -n 1 "$work/said")"
    elif timeout 100 umount "$work/mnt" && timeout 60 e2fsck -fn "$device" >/dev/null 2>&1; then
        echo "$what, $how, $mib MiB: held, $((SECONDS - start)) s, the volume is clean"
    else
        echo "$what, $how, $mib MiB: written, but the volume is NOT clean"
        wrong=1
    fi
    release
done
exit $wrong
