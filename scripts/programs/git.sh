#!/bin/sh
# git: two commits, promised when `git commit` returns. git.sh run|check CORE_FSYNC
verb=$1
export GIT_CONFIG_NOSYSTEM=1 HOME=/nonexistent GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org GIT_AUTHOR_DATE='1700000000 +0000'
export GIT_COMMITTER_DATE='1700000000 +0000'
mkdir -p "$STETFS_DIR/repository" && cd "$STETFS_DIR/repository" || exit 9
case $verb in
setup)
    git init -q . && git config gc.auto 0
    [ "$2" = default ] || git config core.fsync "$2"
    echo 0 >file && git add file && git commit -qm 0
    ;;
run)
    for n in 1 2; do
        echo "$n" >file && git commit -qam "$n" || exit 1
        echo "$n" >"$STETFS_MARKS"
    done
    ;;
check)
    git fsck --full --strict --no-dangling --no-progress || exit 1
    for n in $(cat "$STETFS_MARKS_FILE"); do
        git log --format=%s | grep -qx "$n" || { echo "commit $n is lost"; exit 1; }
        [ "$(git show "HEAD:file")" -ge "$n" ] || { echo "the file of commit $n is lost"; exit 1; }
    done
    ;;
esac
