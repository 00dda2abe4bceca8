#!/usr/bin/env bash
# Kills under the kernel's ext4 on a volume below which a scheme commits, many times at random moments. Files are made, overwritten, appended
# to, renamed and removed, each durable before the next; whatever was confirmed before a kill must be there after it.
#
#   scripts/below-kills.sh [ROUNDS [KIND...]]      (make below-kills ROUNDS=100)
#
#   KIND        what is killed                                               a round takes
#   server      the server of a mount on this machine (root)                 2 s
#   machine     a virtual machine; the server goes on                        15 s
#   both        the server, and the machine in the same moment               15 s
#
# By default each kind. Machines are on NBD and vhost-user in turns. After every tenth round the server ends, and e2fsck looks at the image.
# SEED=N repeats the moments, as far as time repeats. scripts/machine.sh has the machine.
# Not pipefail: `yes | head` ends by a signal.
set -eu

rounds=${1:-100}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- server machine both

name=below-kills
. "$(dirname "$0")/machine.sh"
image=$work/disk.img socket=$work/socket mnt=$work/mnt
mkdir -p "$mnt"
RANDOM=${SEED:=$RANDOM}

# The steps, for bash and for busybox's sh. Step n concerns the file n % 48.
cat >"$work/steps" <<'STEPS'
content() { yes "step $1" | head -c $((1000 + $1 * 997 % 60000)); }
file() { echo "$dir/$(($1 % 48))"; }
put() { dd of=$1 bs=64k conv=fsync 2>/dev/null; }
step() {
    f=$(file $1)
    case $(($1 % 4)) in
    0) content $1 | put $f ;;
    1) content $1 | put $dir/new && mv $dir/new $f && sync $dir ;;
    2) rm -f $f && content $1 | put $f && sync $dir ;;
    3) content $1 | head -c 700 | put $f && content $1 | tail -c +701 | dd of=$f bs=700 seek=1 conv=fsync 2>/dev/null ;;
    esac
}
is() { content $1 | cmp -s - $(file $1); }
# Whether everything before step n is there. Later steps may have been done without a word; the first of them that is not may be half done.
# Sets `next` to that one.
check() {
    next=$1
    while is $next; do next=$((next + 1)); done
    n=$((next > 47 ? next - 47 : 0))
    while [ $n -lt $next ]; do
        is $n || echo "guest: step $n of $1 is wrong"
        n=$((n + 1))
    done
}
STEPS
. "$work/steps"

new_volume() {
    rm -f "$image" "$socket" "$work/server"
    "$stetfs" mkfs "$image" --size 64M >/dev/null
    next=0
}

# Whether e2fsck is to look after this round.
is_due() { [ $(($1 % 10)) = 0 ] || [ "$1" = "$rounds" ]; }

# Ends the server, which leaves a plain image.
settle() {
    kill "$server"
    wait "$server" || fail "the server's end"
    server=''
    judge "$1"
}

# e2fsck's opinion after a round.
judge() {
    e2fsck -fn "$image" >"$work/e2fsck" 2>&1 || fail "e2fsck, after round $1: $work/e2fsck"
    echo "$name: $1 kills, $next steps"
}

kill_mounts() {
    local round pid steps dir=$mnt confirmed=$work/confirmed
    [ "$(id -u)" = 0 ] || fail "the kind server needs root"
    trap 'umount "$mnt" 2>/dev/null || true' EXIT INT TERM
    for round in $(seq "$rounds"); do
        "$stetfs" mount -q -o front=kernel,scheme=stet,data=journal "$image" "$mnt" 2>>"$work/server" || fail "no mount in round $round"
        check $next >"$work/wrong"
        [ ! -s "$work/wrong" ] || fail "round $round: $(cat "$work/wrong")"
        pid=$("$stetfs" stats --json "$mnt" | tr , '\n' | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
        : >"$confirmed"
        (n=$next; while step $n; do echo $n >>"$confirmed"; n=$((n + 1)); done) 2>/dev/null &
        steps=$!
        sleep "$((RANDOM % 2)).$((RANDOM % 10))$((RANDOM % 10))"
        kill -9 "$pid"
        wait "$steps" || true
        [ ! -s "$confirmed" ] || next=$(($(tail -n 1 "$confirmed") + 1))
        umount "$mnt" 2>/dev/null || umount -l "$mnt" || fail "round $round: not unmounted"
        if is_due "$round"; then
            "$stetfs" fsck -y "$image" >/dev/null 2>&1 || [ $? -le 1 ] || fail "fsck, after round $round"
            judge "$round"
        fi
    done
}

# $1: machine, or both.
kill_machines() {
    local round
    how=nbd
    for round in $(seq "$rounds"); do
        [ -n "$server" ] || serve
        boot "next=$next"
        wait_for '^guest: confirmed' $((1 + RANDOM % 12))
        sleep "0.$((RANDOM % 10))$((RANDOM % 10))"
        if [ "$1" = both ]; then
            kill_now "$server" "$machine"
            server=''
        else
            kill_now "$machine"
        fi
        machine=''
        ! grep 'is wrong\|no mount\|rror' "$work/console" || fail "round $round: the machine complains"
        next=$(($(said confirmed) + 1))
        if is_due "$round"; then
            [ -n "$server" ] || serve
            settle "$round"
        fi
        # The next server takes the other way.
        [ -n "$server" ] || if [ $how = nbd ]; then how=vhost-user; else how=nbd; fi
    done
}

for kind; do
    new_volume
    from=$SECONDS
    case $kind in
    server) kill_mounts ;;
    machine | both)
        make_initramfs < <(
            cat "$work/steps"
            cat <<'INIT'
dir=/mnt
mount -t ext4 -o data=journal /dev/vda /mnt || { echo "guest: no mount"; poweroff -f; }
check $(sed -n 's/.*next=\([0-9]*\).*/\1/p' /proc/cmdline)
echo "guest: checked $next"
while step $next; do
    echo "guest: confirmed $next"
    next=$((next + 1))
done
INIT
        )
        kill_machines "$kind"
        ;;
    *) fail "there is no kind $kind" ;;
    esac
    echo "$name: $kind: $rounds kills, $next steps confirmed, none lost; $((SECONDS - from)) s, SEED=$SEED"
done
