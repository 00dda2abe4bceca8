# shellcheck shell=bash
# A database on a directory that is marked atomic: under load the server of the mount is killed at a
# random moment, and the database with it; then both recover, and the database is judged.
# postgres.sh and mariadb.sh source this, with their words (path/to/stetfs [ROUNDS]). Before, they
# set `owner`, the user whom the database belongs to; afterwards they call `kill_rounds`, and have
# these functions:
#
#   create       makes it in $data, a directory that is not there yet
#   fill         what the load wants to find; it is started before
#   start        returns when it answers; writes its process to $work/pid. Sockets: $work/socket
#   load         keeps it busy
#   count        how many changes are committed, and durable
#   judge        says what is wrong with the database, and fails
#   stop         in order; fails if what it leaves is wrong
#
# MOUNT_OPTIONS (default data=ordered), SEED. Needs root.
set -euo pipefail

name=$(basename "$0" .sh)
stetfs=$(realpath "${1:?usage: $0 path/to/stetfs [ROUNDS]}")
rounds=${2:-20}
options=${MOUNT_OPTIONS:-data=ordered}
RANDOM=${SEED:-1}
export LC_ALL=C
[ "$(id -u)" = 0 ] || { echo "$name: needs root" >&2; exit 77; }

work=$(mktemp -d "${TMPDIR:-/tmp}/stetfs-$name.XXXXXX")
data=$work/mnt/db/data
load=

# In front of a command of the owner's, which it becomes: its process is the one that is killed.
as=(setpriv --reuid="${owner:?}" --regid="$owner" --clear-groups)
# The process that serves the mount.
server() {
    "$stetfs" stats --json "$work/mnt" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1
}
mount_it() { "$stetfs" mount -o "$options" "$work/disk.img" "$work/mnt" >/dev/null 2>&1; }

# All of it at once: a process that lives on may wait for the others for ever.
kill_database() {
    local pid all
    pid=$(head -n 1 "$work/pid" 2>/dev/null || true)
    [ -n "$pid" ] || return 0
    kill -STOP "$pid" 2>/dev/null || true
    mapfile -t all < <(pgrep -P "$pid")
    for pid in "$pid" "${all[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    for pid in "$pid" "${all[@]}"; do
        while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    done
    rm -f "$work/pid"
}

# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local status=$?
    trap - EXIT INT TERM
    set +e
    [ -n "$load" ] && kill -KILL "$load" 2>/dev/null
    kill_database
    mountpoint -q "$work/mnt" && umount -l "$work/mnt"
    if [ "$status" -ne 0 ]; then
        echo "$name: FAILED; left: $work" >&2
    else
        rm -rf "$work"
    fi
    exit "$status"
}

make_volume() {
    chmod 755 "$work"
    mkdir "$work/mnt" "$work/socket"
    chown "$owner" "$work/socket"
    "$stetfs" mkfs "$work/disk.img" --size 4G >/dev/null
    mount_it
    mkdir "$work/mnt/db"
    chattr +j "$work/mnt/db"
    chown "$owner" "$work/mnt/db"
}

kill_under_load() {
    load >"$work/load" 2>&1 &
    load=$!
    sleep "$((RANDOM % 5 + 1)).$((RANDOM % 10))"
    before=$(count)
    kill -KILL "$(server)"
    kill_database
    wait "$load" 2>/dev/null || true
    load=
    while mountpoint -q "$work/mnt" 2>/dev/null; do sleep 0.1; done
}

kill_rounds() {
    local round before after
    trap clean_up EXIT
    trap 'exit 130' INT TERM
    make_volume
    create
    start
    fill
    for ((round = 1; round <= rounds; round++)); do
        kill_under_load
        mount_it
        start
        judge || exit 1
        after=$(count)
        if [ "$after" -lt "$before" ]; then
            echo "$name: round $round: $before changes before the kill, $after after it" >&2
            exit 1
        fi
        echo "round $round: $after changes are there, and nothing is wrong"
    done
    stop
    rm -f "$work/pid"
    "$stetfs" umount "$work/mnt" >/dev/null
    "$stetfs" fsck "$work/disk.img" >/dev/null
    echo "$name: $rounds rounds with -o $options"
}
