#!/usr/bin/env bash
# Runs a test program as cargo's runner does, and ends it, with what it has started, when it takes too long:
# STETFS_TEST_LIMIT=SECONDS, 1200 by default, several times what the longest takes beside four busy loops. Before that it tells where in the kernel
# each of the threads waits.
set -uo pipefail

limit=${STETFS_TEST_LIMIT:-1200}

# Process $1 and all that it and they have started.
with_children() {
    echo "$1"
    local child
    for child in $(ps -o pid= --ppid "$1"); do
        with_children "$child"
    done
}

tell_threads() {
    local pid task
    for pid in $(with_children "$1"); do
        for task in "/proc/$pid/task"/*; do
            echo "process $pid ($(tr '\0' ' ' <"/proc/$pid/cmdline")), thread ${task##*/} ($(cat "$task/comm"))," \
                "$(sed -n 's/^State:\t//p' "$task/status"): $(sed 's/^\S* //; s/+.*//' "$task/stack" | paste -sd ' ')"
        done
    done
}

# With nothing of ours open, so that nobody waits for it.
(
    sleep "$((limit - limit / 100 - 1))" >/dev/null
    tell_threads "$(pgrep -P "$$" -x timeout)"
) 2>/dev/null &
watch=$!
disown
timeout --kill-after=20 "$limit" "$@"
status=$?
if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    echo "TIME LIMIT: $1 was ended after $limit s"
fi
pkill -P "$watch"
kill "$watch" 2>/dev/null
exit "$status"
