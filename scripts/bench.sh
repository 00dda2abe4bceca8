# shellcheck shell=bash
# What the scripts bench-*.sh have in common; they source this file. `$dir` is a directory that is
# removed at the end, `$at` where they mount, which is unmounted. SCRATCH says where, if it is not in
# memory: what a disk takes for a flush is then no concern of those that are compared.
dir=$(mktemp -d "${SCRATCH:-/dev/shm}/stetfs-bench-XXXXXX")
at=$dir/mnt
mkdir "$at"
unmount() { ! mountpoint -q "$at" || umount "$at" 2>/dev/null || fusermount3 -u "$at"; }
finish() {
    cd /
    unmount || true
    rm -rf --one-file-system "$dir"
}
trap finish EXIT
median() { sort -g | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
