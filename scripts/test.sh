#!/usr/bin/env bash
# Runs every test, those in the documentation last, or what the arguments choose, as for cargo test. Two test programs run at a time, since many of
# them wait for the kernel most of the time. Of each program that passes only the result is shown, and which tests said that they skip
# something and why; of one that fails everything. A program that does not end is ended (scripts/limit.sh), and the tests named that it was at.
#
#   STETFS_TEST_JOBS=N    programs at a time
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

has_docs=
[ $# -gt 0 ] || {
    set -- --workspace
    has_docs=yes
}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Builds; lists each test program with the directory of its package, which is where cargo runs it.
"$cargo" test --locked --no-run --message-format=json-render-diagnostics "$@" >"$dir/built"
sed -nE 's/.*"manifest_path":"([^"]*)\/Cargo\.toml".*"profile":\{[^}]*"test":true.*"executable":"([^"]+)".*/\1\t\2/p' "$dir/built" >"$dir/all"
# The longest first, so that nobody waits for one of them in the end.
longest='/(power_cuts|cli|experiments|stress|recoveries)-[0-9a-f]+$'
{ grep -E "$longest" "$dir/all" || true; grep -vE "$longest" "$dir/all" || true; } | tr '\t' '\n' >"$dir/programs"

# One program: it is named when it begins. Its output is shown when it has ended, so that those of two do not mix.
run_one() {
    local dir=$1 package=$2 program=$3 begin=$SECONDS status=0
    local name=${program##*/} out
    out=$dir/${name}.out
    { flock 9; echo "-- ${package##*/} ${name%-*}"; } 9>"$dir/lock"
    (cd "$package" && CARGO_MANIFEST_DIR=$package "$OLDPWD/scripts/limit.sh" "$program" --show-output) >"$out" 2>&1 || status=$?
    {
        flock 9
        echo "== ${package##*/} ${name%-*}: $((SECONDS - begin)) s"
        awk -v failed="$status" '
            /^test .* has been running for over / { slow[$2] = 1 }
            /^test .* \.\.\. / { delete slow[$2] }
            /^TIME LIMIT: / { for (name in slow) print "TIME LIMIT: not ended: " name }
            /^---- / { name = $2 }
            /SKIPPED/ { print name ": " $0 }
            failed != 0 || /^test result: / { print }
        ' "$out"
        [ "$status" -eq 0 ] || echo "$name" >>"$dir/failed"
    } 9>"$dir/lock"
}
export -f run_one

xargs -r -d '\n' -n 2 -P "${STETFS_TEST_JOBS:-2}" bash -c 'run_one "$@"' _ "$dir" <"$dir/programs"
[ -z "$has_docs" ] || "$cargo" test --locked --doc "$@" || echo "documentation" >>"$dir/failed"
if [ -e "$dir/failed" ]; then
    echo "FAILED: $(paste -sd ' ' "$dir/failed")"
    exit 1
fi
