#!/usr/bin/env bash
# The whole promise in half a minute: real programs write to a mounted volume, its server is killed in the middle,
# and everything that was confirmed is there afterwards, says e2fsck, says the kernel.
#
#   scripts/demo.sh path/to/stetfs
#
# Works in a temporary directory (TMPDIR) and leaves nothing behind. Needs no root; as root the kernel's opinion is asked too.
set -euo pipefail

stetfs=$(realpath "${1:?usage: scripts/demo.sh path/to/stetfs}")
source_tree=$(realpath "$(dirname "$0")/..")
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export LC_ALL=C

work=$(mktemp -d "${TMPDIR:-/tmp}/stetfs-demo.XXXXXX")
image=$work/disk.img
mnt=$work/mnt
kernel=$work/kernel
server=
writers=()
mkdir "$mnt" "$kernel"

stop_writers() {
    local pid
    for pid in "${writers[@]}"; do
        kill -KILL -- "-$pid" 2>/dev/null || true
        { wait "$pid" || true; } 2>/dev/null
    done
    writers=()
}

# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local status=$?
    trap - EXIT INT TERM
    set +e
    stop_writers
    if mountpoint -q "$kernel"; then umount "$kernel"; fi
    [ -n "$server" ] && kill -KILL "$server" 2>/dev/null
    { wait; } 2>/dev/null
    # A dead FUSE mount answers nothing, not even mountpoint(1); ask the kernel's list.
    until is_gone; do
        fusermount3 -u -z "$mnt" 2>/dev/null || umount -l "$mnt" 2>/dev/null || break
    done
    rm -rf "$work"
    if [ "$status" -ne 0 ]; then echo "demo: FAILED" >&2; fi
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

step() { printf '\n== %s\n' "$*"; }
# Shows a command and what it says, without this machine's paths.
run() {
    local line="$*"
    line=${line//$work\//}
    printf '   $ %s\n' "${line//$stetfs/stetfs}"
    "$@" 2>&1 | shown
}
shown() { sed -e "s|$work/||g" -e 's/^/     /'; }
say() { printf '   %s\n' "$*"; }
fail() {
    echo "demo: $*" >&2
    exit 1
}

# Waits until a command succeeds, for at most ten seconds.
wait_for() {
    local _
    for _ in $(seq 500); do
        "$@" 2>/dev/null && return 0
        sleep 0.02
    done
    return 1
}

can_mount() {
    [ -c /dev/fuse ] && { [ "$(id -u)" -eq 0 ] || command -v fusermount3 >/dev/null; } &&
        (: <>/dev/fuse) 2>/dev/null
}

# What the source tree consists of: what git knows, or everything but build results.
list_source() {
    cd "$source_tree"
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -z
    else
        find . -path ./target -prune -o -path ./.git -prune -o -type f -print0
    fi
}

copy_source() { # to a directory
    mkdir -p "$1"
    list_source | (cd "$source_tree" && tar --null -T - -cf -) | tar -xf - -C "$1"
}

# Names, types, modes, owners, sizes and times of a tree, and what its files hold.
listing() {
    (cd "$1" && find . -path ./lost+found -prune -o -printf '%p %y %M %U %G %n %s %T@ %l\n' | sort)
    (cd "$1" && find . -path ./lost+found -prune -o -type f -print0 | sort -z | xargs -0r sha256sum)
}

# Whether the mount is there and is that of $server, not what is left of an older one.
serves() { "$stetfs" stats --json "$mnt" | grep -q "\"pid\": $server\b"; }

is_gone() { ! grep -qF " $mnt " /proc/self/mountinfo; }

mount_volume() {
    # In front, so that the server is a child of this script whose number is known.
    "$stetfs" mount -f -v -o data=journal "$image" "$mnt" >"$work/server.log" 2>&1 &
    server=$!
    wait_for serves || fail "the mount does not come up: $(cat "$work/server.log")"
}

# --- writers: each notes outside the volume what has been confirmed to it, after it was confirmed ---

# Small files, each fsynced.
write_files() {
    local n=0
    mkdir -p "$mnt/mail"
    while :; do
        n=$((n + 1))
        head -c $((RANDOM % 9000 + 100)) /dev/urandom >"$work/letter"
        dd if="$work/letter" of="$mnt/mail/$n" bs=64k conv=fsync status=none 2>/dev/null || return 0
        echo "$(sha256sum <"$work/letter" | cut -d' ' -f1)  mail/$n" >>"$work/confirmed-files"
    done
}

# SQLite transfers between accounts; each transaction leaves a row with its number, and the number comes out after COMMIT.
write_database() {
    local n=0
    # TRUNCATE: a COMMIT ends with an fsync of the rollback journal, which SQLite has open. In the mode DELETE it is
    # atomic, but durable only with the next one, unless synchronous=EXTRA syncs the directory; and that it cannot open
    # the directory SQLite does not tell. When the server is dead that is so, or what it opens is the one below the mount.
    printf '.output /dev/null\nPRAGMA journal_mode = TRUNCATE;\nPRAGMA synchronous = FULL;\n.output stdout\n' >"$work/pragmas"
    while n=$((n + 1)); do
        [ $n -gt 1 ] || cat "$work/pragmas"
        printf 'BEGIN; UPDATE account SET balance = balance - 5 WHERE id = %d; ' $((RANDOM % 1000))
        printf 'UPDATE account SET balance = balance + 5 WHERE id = %d; ' $((RANDOM % 1000))
        printf 'INSERT INTO transfer VALUES (%d); COMMIT; SELECT %d;\n' "$n" "$n"
    done 2>/dev/null | stdbuf -oL sqlite3 -bail "$mnt/bank.db" >"$work/confirmed-transfers" 2>/dev/null || true
}

make_database() {
    sqlite3 "$1" >/dev/null <<'SQL'
CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
CREATE TABLE transfer (n INTEGER PRIMARY KEY);
WITH RECURSIVE i(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM i WHERE n < 999)
INSERT INTO account SELECT n, 1000 FROM i;
SQL
}

# Every confirmed transfer is there, none of the money is lost, and the database is sound.
check_database() {
    local last sum sound transfers
    last=$(tail -n 1 "$work/confirmed-transfers" 2>/dev/null || true)
    last=${last:-0}
    sound=$(sqlite3 "$1" 'PRAGMA integrity_check')
    sum=$(sqlite3 "$1" 'SELECT sum(balance) FROM account')
    transfers=$(sqlite3 "$1" 'SELECT count(*) FROM transfer')
    [ "$sound" = ok ] || fail "SQLite finds the database damaged: $sound"
    [ "$sum" = 1000000 ] || fail "there are $sum in the accounts, not 1000000"
    [ "$(sqlite3 "$1" "SELECT count(*) FROM transfer WHERE n <= $last")" -eq "$last" ] || fail "a confirmed transfer is lost"
    say "SQLite: integrity_check ok; $last transfers were confirmed, $transfers are there; the accounts hold $sum"
}

check_files() { # in a directory
    local confirmed
    confirmed=$(wc -l <"$work/confirmed-files")
    [ "$confirmed" -gt 0 ] || fail "not one file was confirmed"
    (cd "$1" && sha256sum --quiet -c "$work/confirmed-files") >"$work/check" 2>&1 ||
        fail "a confirmed file is lost or changed: $(head -n 5 "$work/check")"
    say "files: $confirmed were fsynced and confirmed, all are there with their content"
}

start() { # a writer, in a process group of its own
    set -m
    "$@" &
    writers+=($!)
    set +m
}

with_mount() {
    step "Mount it (FUSE, data=journal: every write goes through the journal)"
    mount_volume
    run "$stetfs" info "$image"

    step "Copy this project's source tree into it, make a SQLite database on it"
    copy_source "$mnt/source"
    make_database "$mnt/bank.db"
    sync -f "$mnt"
    say "$(find "$mnt/source" -type f | wc -l) files, $(du -sh "$mnt/source" | cut -f1)"

    step "Write small files with fsync and run SQLite transfers on it, then kill -9 the server in the middle"
    : >"$work/confirmed-files"
    start write_files
    start write_database
    sleep 4
    "$stetfs" stats --json "$mnt" >"$work/stats.json"
    kill -KILL "$server"
    { wait "$server" || true; } 2>/dev/null
    server=
    stop_writers
    wait_for is_gone || fail "the mount point of the dead server is not released"
    say "killed after $(wc -l <"$work/confirmed-files") confirmed files and $(tail -n 1 "$work/confirmed-transfers" || true) confirmed transfers"

    step "Mount again: the journal is recovered"
    run "$stetfs" info "$image" | grep -E '\$|state|log '
    mount_volume
    shown <"$work/server.log"
    check_files "$mnt"
    check_database "$mnt/bank.db"
    copy_source "$work/again"
    diff -r "$work/again" "$mnt/source" || fail "the source tree is not what was copied"
    say "source tree: identical"
    listing "$mnt" >"$work/ours"

    step "Unmount"
    run "$stetfs" umount "$mnt"
    { wait "$server" || true; } 2>/dev/null
    server=
}

without_mount() {
    step "This machine has no usable /dev/fuse: the same through the library, without a mount"
    make_database "$work/bank.db"
    copy_source "$work/again"
    run "$stetfs" cp -a "$work/again" "$image:/source"
    run "$stetfs" cp -a "$work/bank.db" "$image:/bank.db"

    step "Write small files with fsync through the library, then kill -9 the process in the middle"
    writer=$(dirname "$stetfs")/examples/steady_writer
    [ -x "$writer" ] || (cd "$source_tree" && cargo build --release --locked --quiet -p stetfs-cli --example steady_writer)
    "$writer" write "$image" mail "$work/stats.json" >"$work/confirmed-files" &
    server=$!
    sleep 4
    kill -KILL "$server"
    { wait "$server" || true; } 2>/dev/null
    server=
    say "killed after $(wc -l <"$work/confirmed-files") confirmed files"

    step "Recover, and look"
    run "$stetfs" info "$image" | grep -E '\$|state|log '
    run "$stetfs" fsck -p "$image"
    "$stetfs" cp -a -q "$image:/" "$work/out"
    say "files: $("$writer" check "$work/out" <"$work/confirmed-files") were fsynced and confirmed, all are there with their content"
    check_database "$work/out/bank.db"
    diff -r "$work/again" "$work/out/source" || fail "the source tree is not what was copied"
    say "source tree: identical"
    listing "$work/out" >"$work/ours"
}

kernel_opinion() {
    if [ "$(id -u)" -ne 0 ] || ! mount -o ro,loop "$image" "$kernel" 2>"$work/why"; then
        say "not asked: $([ "$(id -u)" -eq 0 ] && tail -n 1 "$work/why" || echo 'only root can mount with the kernel')"
        return
    fi
    listing "$kernel" >"$work/theirs"
    diff "$work/ours" "$work/theirs" >"$work/difference" || fail "the kernel sees another tree: $(head -n 5 "$work/difference")"
    umount "$kernel"
    say "the kernel's ext4, read-only: the same $(wc -l <"$work/ours") lines of names, modes, owners, times and checksums"
    mount -o loop "$image" "$kernel"
    echo "written by the kernel" >"$kernel/from-the-kernel"
    umount "$kernel"
    [ "$("$stetfs" cat "$image:/from-the-kernel")" = "written by the kernel" ] || fail "what the kernel wrote is not there"
    say "the kernel's ext4, read-write: it wrote a file, stetfs reads it"
    e2fsck -fn "$image" >"$work/e2fsck" 2>&1 || fail "e2fsck after the kernel: $(cat "$work/e2fsck")"
}

step "Make a volume"
run "$stetfs" mkfs "$image" --size 512M --label demo

if can_mount; then with_mount; else without_mount; fi

step "e2fsck -fn"
e2fsck -fn "$image" >"$work/e2fsck" 2>&1 || fail "e2fsck: $(cat "$work/e2fsck")"
say "clean: $(tail -n 1 "$work/e2fsck" | sed "s|$work/||")"

step "The kernel's opinion"
kernel_opinion

step "What was written until the kill, and why"
# The table; not the counts of single requests below it.
"$stetfs" stats --from "$work/stats.json" | sed -e '/ on .*, scheme /,/^$/d' -e '/^programs read/q' | shown

printf '\ndemo: passed\n'
