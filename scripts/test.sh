#!/usr/bin/env bash
# Runs every test (or what the arguments choose, as for cargo test) and shows, beside cargo's usual lines, which tests said that they skip
# something and why: cargo keeps the words of tests that pass to itself. A program that does not end is ended (scripts/limit.sh), and the tests
# named that it was at.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- --workspace
runner="target.'cfg(all())'.runner='$PWD/scripts/limit.sh'"
${CARGO:-cargo} --config "$runner" test --locked --no-fail-fast "$@" -- --show-output | awk '
    /^test .* has been running for over / { slow[$2] = 1 }
    /^test .* \.\.\. / { delete slow[$2] }
    /^TIME LIMIT: / { for (name in slow) { print "TIME LIMIT: not ended: " name; delete slow[name] } }
    /^successes:$/ { hidden = 1 }
    /^(failures:|test result: )/ { hidden = 0 }
    hidden && /^---- / { name = $2 }
    hidden && /SKIPPED/ { print name ": " $0 }
    !hidden { print }
    { fflush() }
'
