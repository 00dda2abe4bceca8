#!/usr/bin/env bash
# Runs a test program as cargo's runner does, and ends it, with what it has started, when it takes too long:
# STETFS_TEST_LIMIT=SECONDS, 1200 by default, several times what the longest takes beside four busy loops.
set -uo pipefail

limit=${STETFS_TEST_LIMIT:-1200}
timeout --kill-after=20 "$limit" "$@"
status=$?
if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    echo "TIME LIMIT: $1 was ended after $limit s"
fi
exit "$status"
