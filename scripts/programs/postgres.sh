#!/bin/sh
# PostgreSQL with checksums of pages: rows are updated, promised when COMMIT returns; a checkpoint
# writes their pages home after each. postgres.sh setup|run|check SETTING=VALUE
#   on() { echo "scripts/programs/postgres.sh $1 full_page_writes=off"; }
#   stetfs crash --size 256M --timeout 120 --check-timeout 60 --setup "$(on setup)" --check "$(on check)" -- $(on run)
verb=$1
bin=$(dirname "$(ls -d /usr/lib/postgresql/*/bin/postgres | tail -1)")
data=$STETFS_DIR/db
socket=$(mktemp -d)
as() { setpriv --reuid=postgres --regid=postgres --clear-groups env -i PATH="$bin:$PATH" LC_ALL=C "$@"; }
sql() { as psql -h "$socket" -d postgres -qAtX -v ON_ERROR_STOP=1 "$@"; }
start() { as pg_ctl start -s -w -t 20 -D "$data" -o "-k $socket" -l "$socket/log" || { cat "$socket/log"; return 1; }; }
stop() {
    [ ! -e "$data/postmaster.pid" ] || as pg_ctl stop -s -m "$1" -t 20 -D "$data"
    rm -rf "$socket"
}
chown postgres "$socket"
case $verb in
setup)
    mkdir "$data" && chown postgres "$data"
    as initdb -k -N -A trust --wal-segsize=1 "$data" >/dev/null || exit 9
    cat >>"$data/postgresql.conf" <<CONF
$2
listen_addresses = ''
autovacuum = off
shared_buffers = 4MB
wal_level = minimal
max_wal_senders = 0
wal_recycle = off
min_wal_size = 2MB
max_wal_size = 2MB
CONF
    trap 'stop fast' EXIT
    start && sql <<SQL
CREATE TABLE t (id int, v int, rest text) WITH (fillfactor = 50);
INSERT INTO t SELECT id, 0, repeat('x', 500) FROM generate_series(1, 40) id;
CHECKPOINT
SQL
    ;;
run)
    trap 'stop immediate' EXIT
    start || exit 9
    for n in 1 2 3; do
        sql -c "UPDATE t SET v = $n WHERE id % 7 = 0" || exit 9
        echo "$n" >"$STETFS_MARKS"
        sql -c CHECKPOINT || exit 9
    done
    ;;
check)
    trap 'stop immediate' EXIT
    # As after a reboot: PostgreSQL itself refuses a lock file that is there and empty.
    rm -f "$data/postmaster.pid"
    start || exit 1
    promised=$(tail -1 "$STETFS_MARKS_FILE")
    found=$(sql -c "SELECT count(*), count(DISTINCT v) FILTER (WHERE id % 7 = 0), max(v) FROM t") || exit 1
    case $found in
    "40|1|"*) [ "${found##*|}" -ge "${promised:-0}" ] || { echo "update $promised is lost"; exit 1; } ;;
    *) echo "rows, different values, value: $found"; exit 1 ;;
    esac
    ;;
esac
