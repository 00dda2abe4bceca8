#!/usr/bin/env bash
# PostgreSQL without full_page_writes on a directory that is marked atomic, killed under pgbench's
# load with the server of its mount (kills.sh); pg_amcheck and pgbench's sums must agree.
#
#   scripts/postgres.sh path/to/stetfs [ROUNDS]        (make postgres ROUNDS=N)
#
# MOUNT_OPTIONS, SEED as in kills.sh. Needs root, and PostgreSQL's programs (pg_config --bindir, or
# PGBIN).
set -euo pipefail
owner=postgres
# shellcheck source=scripts/kills.sh
. "$(dirname "$0")/kills.sh"
bin=${PGBIN:-$(pg_config --bindir)}

sql() { "${as[@]}" "$bin/psql" -h "$work/socket" -X -A -t -v ON_ERROR_STOP=1 -c "$1" bench; }
pgbench() { "${as[@]}" "$bin/pgbench" -h "$work/socket" "$@" bench; }

create() {
    "${as[@]}" "$bin/initdb" -D "$data" -A trust --no-sync >/dev/null
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
}

start() {
    "${as[@]}" "$bin/pg_ctl" -D "$data" -l "$work/socket/log" -w -t 120 start >/dev/null 2>&1
    head -n 1 "$data/postmaster.pid" >"$work/pid"
}

fill() {
    "${as[@]}" "$bin/createdb" -h "$work/socket" bench
    pgbench -i -q -s 10 >/dev/null 2>&1
    sql "create extension amcheck" >/dev/null
}

load() { pgbench -n -c 4 -j 2 -T 3600; }
count() { sql "select count(*) from pgbench_history"; }

judge() {
    local sums
    "${as[@]}" "$bin/pg_amcheck" -h "$work/socket" --heapallindexed --parent-check -d bench ||
        return
    sums=$(sql "select
        (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history) and
        (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history) and
        (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)")
    [ "$sums" = t ] || { echo "sums agree: $sums" >&2; return 1; }
}

stop() { "${as[@]}" "$bin/pg_ctl" -D "$data" -w stop >/dev/null; }

kill_rounds
