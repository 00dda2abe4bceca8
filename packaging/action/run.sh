#!/usr/bin/env bash
# What action.yml runs: `stetfs crash` on a program, with its report where GitHub shows reports. The
# inputs are variables, so that nothing in them is taken for a part of this script. Without stetfs on
# the path (or in STETFS) it is built here, and fusermount3 installed.
set -uo pipefail
here=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")

as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }
if ! command -v fusermount3 >/dev/null; then
    as_root apt-get update -qq && as_root apt-get install -qq --no-install-recommends fuse3 >/dev/null || exit
fi
stetfs=${STETFS:-$(command -v stetfs || true)}
if [ -z "$stetfs" ]; then
    cargo install --quiet --locked --path "$here/crates/cli" --root "${RUNNER_TEMP:-/tmp}/stetfs" || exit
    stetfs=${RUNNER_TEMP:-/tmp}/stetfs/bin/stetfs
fi

arguments=()
add() { [ -z "$2" ] || arguments+=("$1" "$2"); }
add --check "${INPUT_CHECK:-}"
add --read "${INPUT_READ:-}"
add --setup "${INPUT_SETUP:-}"
add --budget "${INPUT_BUDGET:-}"
add --junit "${INPUT_REPORT:-}"
read -ra models <<<"${INPUT_MODEL:-}"
for model in "${models[@]}"; do add --model "$model"; done
read -ra more <<<"${INPUT_ARGUMENTS:-}"

told=$(mktemp)
"$stetfs" crash "${arguments[@]}" "${more[@]}" -- sh -c "${INPUT_RUN:?there is no program to run}" 2>&1 | tee "$told"
status=${PIPESTATUS[0]}
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
    {
        echo "### Power cuts"
        echo
        # Indented, so that nothing in it is Markdown.
        sed 's/^/    /' "$told"
    } >>"$GITHUB_STEP_SUMMARY"
fi
if [ "$status" -ne 0 ]; then
    # An annotation is one line, in which these signs have a meaning.
    first=$(grep -m 1 '^finding' "$told" || grep -m 1 . "$told")
    first=$(sed 's/%/%25/g; s/\r/%0D/g' <<<"$first")
    echo "::error title=Power cuts::$first"
fi
rm -f "$told"
exit "$status"
