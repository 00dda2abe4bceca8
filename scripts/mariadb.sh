#!/usr/bin/env bash
# MariaDB without its doublewrite buffer on a directory that is marked atomic, killed under
# sysbench's load with the server of its mount (kills.sh). Triggers add up what the load changes;
# CHECK TABLE and these sums must agree, and innochecksum with the files at the end.
#
#   scripts/mariadb.sh path/to/stetfs [ROUNDS]         (make mariadb ROUNDS=N)
#
# MOUNT_OPTIONS, SEED as in kills.sh; FLUSH_METHOD (default O_DIRECT) and DOUBLEWRITE (default 0) of
# InnoDB. Needs root, MariaDB's programs and sysbench.
set -euo pipefail
owner=mysql
# shellcheck source=scripts/kills.sh
. "$(dirname "$0")/kills.sh"
socket=$work/socket/sql

# Its client is root by the socket, as its server sees who calls.
sql() { mariadb --no-defaults -S "$socket" -N -B -e "$1" bench; }
sysbench() {
    command sysbench oltp_read_write --db-driver=mysql --mysql-socket="$socket" --mysql-user=root \
        --mysql-db=bench --tables=1 --table-size=100000 --threads=4 "$@"
}

create() {
    "${as[@]}" mariadb-install-db --no-defaults --datadir="$data" --skip-test-db \
        >"$work/create" 2>&1 || { cat "$work/create" >&2; return 1; }
}

# A pool and a log that are small, so that pages are written all the time.
start() {
    "${as[@]}" mariadbd --no-defaults --datadir="$data" --socket="$socket" --skip-networking \
        --pid-file="$work/socket/pid" --innodb-doublewrite="${DOUBLEWRITE:-0}" \
        --innodb-flush-method="${FLUSH_METHOD:-O_DIRECT}" --innodb-page-size=16k \
        --innodb-buffer-pool-size=8M --innodb-log-file-size=8M --innodb-max-dirty-pages-pct=0 \
        --innodb-io-capacity=2000 >>"$work/socket/log" 2>&1 &
    echo $! >"$work/pid"
    disown
    for ((tries = 0; tries < 1200; tries++)); do
        mariadb-admin --no-defaults -S "$socket" ping >/dev/null 2>&1 && return
        kill -0 "$(cat "$work/pid")" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$work/socket/log" >&2
    return 1
}

fill() {
    mariadb-admin --no-defaults -S "$socket" create bench
    sysbench prepare >/dev/null
    mariadb --no-defaults -S "$socket" bench <<'SQL'
CREATE TABLE sums (part INT PRIMARY KEY, total BIGINT, changes BIGINT);
INSERT INTO sums SELECT id % 64 AS part, SUM(k), 0 FROM sbtest1 GROUP BY part;
CREATE TABLE counted (changes BIGINT);
CREATE TRIGGER made AFTER INSERT ON sbtest1 FOR EACH ROW
    UPDATE sums SET total = total + NEW.k, changes = changes + 1 WHERE part = NEW.id % 64;
CREATE TRIGGER changed AFTER UPDATE ON sbtest1 FOR EACH ROW
    UPDATE sums SET total = total + NEW.k - OLD.k, changes = changes + 1 WHERE part = NEW.id % 64;
CREATE TRIGGER removed AFTER DELETE ON sbtest1 FOR EACH ROW
    UPDATE sums SET total = total - OLD.k, changes = changes + 1 WHERE part = OLD.id % 64;
SQL
}

load() { sysbench --time=3600 run; }

# InnoDB shows a transaction before it is durable. The next one to be durable makes it so.
count() {
    sql "SELECT SUM(changes) INTO @changes FROM sums;
        INSERT INTO counted VALUES (@changes); SELECT @changes"
}

judge() {
    local said
    said=$(sql "CHECK TABLE sbtest1, sums, counted EXTENDED") || return
    [ "$(grep -c 'status.OK$' <<<"$said")" = 3 ] || { echo "$said" >&2; return 1; }
    said=$(sql "SELECT sums.*, there.total FROM sums LEFT JOIN (SELECT id % 64 AS part,
        SUM(k) AS total FROM sbtest1 GROUP BY part) AS there USING (part)
        WHERE NOT sums.total <=> there.total") || return
    [ -z "$said" ] || { echo "part, sum, changes, sum of the rows: $said" >&2; return 1; }
}

stop() {
    local file
    mariadb-admin --no-defaults -S "$socket" shutdown
    while kill -0 "$(cat "$work/pid")" 2>/dev/null; do sleep 0.1; done
    for file in "$data"/ibdata1 "$data"/*/*.ibd; do
        innochecksum "$file" || { echo "innochecksum: $file" >&2; return 1; }
    done
}

kill_rounds
