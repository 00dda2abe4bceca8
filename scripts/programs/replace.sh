#!/bin/sh
# A file that a command puts in place of another one: sponge of moreutils, and GNU tar, which
# extracts one over it. `replace.sh VERB sponge|tar`. It is promised when the command returns.

verb=$1 kind=$2
cd "$STETFS_DIR" || exit 9

case $verb in
setup)
    if [ "$kind" = tar ]; then
        yes new | head -n 1500 > config
        tar -cf archive.tar config
    fi
    yes old | head -n 1500 > config
    ;;
run)
    case $kind in
    sponge) yes new | head -n 1500 | sponge config || exit 1 ;;
    tar) tar -xf archive.tar || exit 1 ;;
    esac
    echo done > "$STETFS_MARKS"
    ;;
check)
    words=$(sort config | uniq -c | tr -s ' ')
    case $words in
    ' 1500 new') exit 0 ;;
    ' 1500 old')
        grep -q done "$STETFS_MARKS_FILE" || exit 0
        echo "it was done, and is lost"
        exit 1
        ;;
    *) echo "the file is neither the old nor the new one: $words"; exit 1 ;;
    esac
    ;;
esac
