#!/usr/bin/env bash
# Prints every source file with its length and the line that it begins with.
set -euo pipefail
cd "$(dirname "$0")/.."
find crates fuzz/fuzz_targets -name '*.rs' -not -path '*/target/*' | sort | while read -r file; do
    printf '%-48s %5d  %s\n' "$file" "$(wc -l <"$file")" "$(grep -m1 '^//! ' "$file" | cut -c5- || true)"
done
