#!/bin/sh
# MariaDB, InnoDB: rows are updated, promised when COMMIT returns; the pages are written home after
# each. mariadb.sh setup|run|check innodb_doublewrite=on|off
#   on() { echo "scripts/programs/mariadb.sh $1 innodb_doublewrite=off"; }
#   stetfs crash --size 256M --timeout 120 --check-timeout 60 \
#       --setup "$(on setup)" --check "$(on check)" -- $(on run)
verb=$1
setting=$2
data=$STETFS_DIR/db
scratch=$(mktemp -d)
socket=$scratch/sql
server=
as="setpriv --reuid=mysql --regid=mysql --clear-groups env -i PATH=$PATH:/usr/sbin LC_ALL=C"
sql() { mariadb --no-defaults -S "$socket" -u root -N -B "$@"; }
start() {
    $as mariadbd --no-defaults --datadir="$data" --socket="$socket" --skip-networking \
        --"$setting" --innodb-page-size=16k --innodb-buffer-pool-size=6M --innodb-log-file-size=4M \
        --innodb-max-dirty-pages-pct=0 --innodb-buffer-pool-dump-at-shutdown=0 \
        --innodb-buffer-pool-load-at-startup=0 --innodb-stats-auto-recalc=0 >"$scratch/log" 2>&1 &
    server=$!
    until mariadb-admin --no-defaults -S "$socket" ping >/dev/null 2>&1; do
        kill -0 "$server" 2>/dev/null || { grep ERROR "$scratch/log"; return 1; }
        sleep 0.05
    done
}
stop() {
    [ -z "$server" ] || { kill "-$1" "$server"; wait "$server"; } 2>/dev/null
    rm -rf "$scratch"
}
# Until every page is home.
flush() {
    dirty="SHOW STATUS LIKE 'Innodb_buffer_pool_pages_dirty'"
    until [ "$(sql -e "$dirty" | cut -f 2)" = 0 ]; do sleep 0.1; done
}
chown mysql "$scratch"
case $verb in
setup)
    mkdir "$data" && chown mysql "$data" && chattr +j "$data"
    $as mariadb-install-db --no-defaults --datadir="$data" --skip-test-db \
        --innodb-log-file-size=4M >/dev/null || exit 9
    trap 'stop TERM' EXIT
    start && sql <<SQL && flush
CREATE DATABASE d;
USE d;
CREATE TABLE t (id INT PRIMARY KEY, v INT, rest VARCHAR(500), KEY (v));
INSERT INTO t SELECT seq, 0, REPEAT('x', 500) FROM seq_1_to_200;
SQL
    ;;
run)
    trap 'stop KILL' EXIT
    start || exit 9
    for n in 1 2 3; do
        sql -e "UPDATE d.t SET v = $n, rest = REPEAT('$n', 500) WHERE id % 7 = 0" || exit 9
        echo "$n" >"$STETFS_MARKS"
        flush
    done
    ;;
check)
    trap 'stop KILL' EXIT
    start || exit 1
    promised=$(tail -1 "$STETFS_MARKS_FILE")
    said=$(sql -e "CHECK TABLE d.t EXTENDED") || { grep ERROR "$scratch/log"; exit 1; }
    [ "${said%OK}" != "$said" ] || { echo "$said"; exit 1; }
    what="COUNT(*), COUNT(DISTINCT IF(id % 7 = 0, v, NULL)), MAX(v)"
    found=$(sql -e "SELECT $what FROM d.t") || exit 1
    value=${found##*	}
    [ "${found%	*}" = "200	1" ] || { echo "rows, different values, value: $found"; exit 1; }
    [ "$value" -ge "${promised:-0}" ] || { echo "update $promised is lost"; exit 1; }
    ;;
esac
