#!/bin/sh
# Redis with an append-only file: four keys, promised when the server has said OK.
# redis.sh run|check APPENDFSYNC
verb=$1
socket=$(mktemp -u)
redis-server --port 0 --unixsocket "$socket" --dir "$STETFS_DIR" --save '' --appendonly yes \
    --appendfsync "$2" --daemonize no --aof-load-truncated yes --logfile '' >"$socket.log" 2>&1 &
server=$!
trap 'kill -9 $server; rm -f "$socket" "$socket.log"' EXIT
ask() { redis-cli -s "$socket" "$@" 2>/dev/null; }
until [ "$(ask ping)" = PONG ]; do
    kill -0 $server 2>/dev/null || { tail -n 3 "$socket.log"; exit 1; }
    sleep 0.01
done
case $verb in
run)
    for n in 1 2 3 4; do
        [ "$(ask set "key$n" "$n$n$n")" = OK ] || exit 1
        echo "$n" >"$STETFS_MARKS"
    done
    ;;
check)
    for n in $(cat "$STETFS_MARKS_FILE"); do
        [ "$(ask get "key$n")" = "$n$n$n" ] || { echo "key $n was confirmed, and is lost"; exit 1; }
    done
    ;;
esac
