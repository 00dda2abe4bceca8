#!/usr/bin/env bash
# PostgreSQL without full_page_writes on a directory that is marked atomic: under pgbench's load the server of the mount is
# killed at a random moment, and PostgreSQL with it; then both recover, and pg_amcheck and pgbench's sums must agree.
#
#   scripts/postgres.sh path/to/stetfs [ROUNDS]        (make postgres ROUNDS=N)
#
# MOUNT_OPTIONS (default data=ordered), SEED. Needs root, and PostgreSQL's programs (pg_config --bindir, or PGBIN).
set -euo pipefail

stetfs=$(realpath "${1:?usage: scripts/postgres.sh path/to/stetfs [ROUNDS]}")
rounds=${2:-20}
options=${MOUNT_OPTIONS:-data=ordered}
RANDOM=${SEED:-1}
bin=${PGBIN:-$(pg_config --bindir)}
export LC_ALL=C
[ "$(id -u)" = 0 ] || { echo "postgres: needs root" >&2; exit 77; }

work=$(mktemp -d "${TMPDIR:-/tmp}/stetfs-postgres.XXXXXX")
chmod 755 "$work"
mkdir "$work/mnt" "$work/socket"
chown postgres "$work/socket"
data=$work/mnt/db/data
load=

as() { runuser -u postgres -- "$@"; }
sql() { as "$bin/psql" -h "$work/socket" -X -A -t -v ON_ERROR_STOP=1 -c "$1" bench; }
# The process that serves the mount.
server() { "$stetfs" stats --json "$work/mnt" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1; }

# All of it at once: a backend that lives on may wait for the others for ever.
kill_postgres() {
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
    kill_postgres
    mountpoint -q "$work/mnt" && umount -l "$work/mnt"
    if [ "$status" -ne 0 ]; then
        echo "postgres: FAILED; left: $work" >&2
    else
        rm -rf "$work"
    fi
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

start() {
    as "$bin/pg_ctl" -D "$data" -l "$work/socket/log" -w -t 120 start >/dev/null 2>&1
    head -n 1 "$data/postmaster.pid" >"$work/pid"
}

"$stetfs" mkfs "$work/disk.img" --size 4G >/dev/null
"$stetfs" mount -o "$options" "$work/disk.img" "$work/mnt" >/dev/null 2>&1
mkdir "$work/mnt/db"
chattr +j "$work/mnt/db"
chown postgres "$work/mnt/db"
as "$bin/initdb" -D "$data" -A trust --no-sync >/dev/null
cat >>"$data/postgresql.conf" <<CONF
full_page_writes = off
listen_addresses = ''
unix_socket_directories = '$work/socket'
shared_buffers = 16MB
checkpoint_timeout = 30s
max_wal_size = 64MB
bgwriter_delay = 10ms
bgwriter_lru_maxpages = 1000
CONF
start
as "$bin/createdb" -h "$work/socket" bench
as "$bin/pgbench" -h "$work/socket" -i -q -s 10 bench >/dev/null 2>&1
sql "create extension amcheck" >/dev/null

for ((round = 1; round <= rounds; round++)); do
    as "$bin/pgbench" -h "$work/socket" -n -c 4 -j 2 -T 3600 bench >"$work/load" 2>&1 &
    load=$!
    sleep "$((RANDOM % 5 + 1)).$((RANDOM % 10))"
    before=$(sql "select count(*) from pgbench_history")
    kill -KILL "$(server)"
    kill_postgres
    wait "$load" 2>/dev/null || true
    load=
    while mountpoint -q "$work/mnt" 2>/dev/null; do sleep 0.1; done
    "$stetfs" mount -o "$options" "$work/disk.img" "$work/mnt" >/dev/null 2>&1
    start
    as "$bin/pg_amcheck" -h "$work/socket" --heapallindexed --parent-check -d bench
    sums=$(sql "select
        (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history) and
        (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history) and
        (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)")
    after=$(sql "select count(*) from pgbench_history")
    if [ "$sums" != t ] || [ "$after" -lt "$before" ]; then
        echo "postgres: round $round: sums agree: $sums; transactions: $before before the kill, $after after it" >&2
        exit 1
    fi
    echo "round $round: $after transactions, pg_amcheck is content"
done
as "$bin/pg_ctl" -D "$data" -w stop >/dev/null
rm -f "$work/pid"
"$stetfs" umount "$work/mnt" >/dev/null
"$stetfs" fsck "$work/disk.img" >/dev/null
echo "postgres: $rounds rounds with -o $options"
