#!/usr/bin/env bash
# Runs every test (or what the arguments choose, as for cargo test) and shows, beside cargo's usual lines, which tests said that they skip
# something and why: cargo keeps the words of tests that pass to itself.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- --workspace
${CARGO:-cargo} test --locked --no-fail-fast "$@" -- --show-output | awk '
    /^successes:$/ { hidden = 1 }
    /^(failures:|test result: )/ { hidden = 0 }
    hidden && /^---- / { name = $2 }
    hidden && /SKIPPED/ { print name ": " $0 }
    !hidden { print }
    { fflush() }
'
