#!/bin/sh
# Redis with an append-only file: four keys, promised when the server has said OK. Or with a file of
# users: two of them, promised when ACL SAVE has said OK. redis.sh run|check APPENDFSYNC|users
verb=$1
[ $verb != setup ] || exec touch "$STETFS_DIR/users.acl"
case $2 in
users) set -- "$@" --appendonly no --aclfile "$STETFS_DIR/users.acl" ;;
*) set -- "$@" --appendonly yes --appendfsync "$2" --aof-load-truncated yes ;;
esac
what=$2
shift 2
socket=$(mktemp -u)
redis-server --port 0 --unixsocket "$socket" --dir "$STETFS_DIR" --save '' --daemonize no --logfile '' \
    "$@" >"$socket.log" 2>&1 &
server=$!
trap 'kill -9 $server; rm -f "$socket" "$socket.log"' EXIT
ask() { redis-cli -s "$socket" "$@" 2>/dev/null; }
until [ "$(ask ping)" = PONG ]; do
    kill -0 $server 2>/dev/null || { tail -n 3 "$socket.log"; exit 1; }
    sleep 0.01
done
case $verb-$what in
run-users)
    for n in 1 2; do
        [ "$(ask acl setuser "user$n" on)" = OK ] && [ "$(ask acl save)" = OK ] || exit 1
        echo "$n" >"$STETFS_MARKS"
    done
    ;;
check-users)
    for n in $(cat "$STETFS_MARKS_FILE"); do
        ask acl users | grep -qx "user$n" || { echo "user $n was saved, and is lost"; exit 1; }
    done
    ;;
run-*)
    for n in 1 2 3 4; do
        [ "$(ask set "key$n" "$n$n$n")" = OK ] || exit 1
        echo "$n" >"$STETFS_MARKS"
    done
    ;;
check-*)
    for n in $(cat "$STETFS_MARKS_FILE"); do
        [ "$(ask get "key$n")" = "$n$n$n" ] || { echo "key $n was confirmed, and is lost"; exit 1; }
    done
    ;;
esac
