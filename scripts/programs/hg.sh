#!/bin/sh
# Mercurial: two commits, promised when `hg commit` returns. hg.sh setup|run|check
verb=$1
export HGRCPATH= HGUSER=a HGPLAIN=1 LC_ALL=C
hg() { command hg --config devel.default-date='1700000000 0' "$@"; }
mkdir -p "$STETFS_DIR/repository" && cd "$STETFS_DIR/repository" || exit 9
case $verb in
setup)
    hg init . && echo 0 >file && hg add -q file && hg commit -m 0
    ;;
run)
    for n in 1 2; do
        echo "$n" >file && hg commit -m "$n" || exit 1
        echo "$n" >"$STETFS_MARKS"
    done
    ;;
check)
    # As after any crash, a transaction that was under way is taken back first, as hg asks for.
    [ ! -e .hg/store/journal ] || hg recover -q --no-verify || exit 1
    hg verify -q || exit 1
    for n in $(cat "$STETFS_MARKS_FILE"); do
        [ "$(hg cat -r "desc('re:^$n\$')" file)" -ge "$n" ] || { echo "commit $n is lost"; exit 1; }
    done
    ;;
esac
