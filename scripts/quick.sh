#!/usr/bin/env bash
# What a change is asked while it is made: formatting, tidiness, and the unit tests of the crates that it touches. That is what is
# not committed, and what is committed and not on main.
#
#   BASE=COMMIT    what the change is compared with (where it left main, else the last commit)
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

base=${BASE:-}
for main in main origin/main; do
    [ -n "$base" ] || base=$(git merge-base HEAD "$main" 2>/dev/null) || base=
done
mapfile -t changed < <({
    git diff --name-only --no-renames "${base:-HEAD}"
    git ls-files --others --exclude-standard
} | sort -u)

# A crate is its directory; what lies in none of them belongs to the documents and the build.
packages=() targets=()
for manifest in crates/*/Cargo.toml fuzz/Cargo.toml; do
    dir=${manifest%/Cargo.toml}
    printf '%s\n' "${changed[@]}" | grep -q "^$dir/" || continue
    package=$(sed -n 's/^name = "\(.*\)"$/\1/p;T;q' "$manifest")
    packages+=(-p "$package")
    [ ! -e "$dir/src/lib.rs" ] || targets=(--lib)
done

echo "== ${#changed[@]} files differ from ${base:-HEAD}"
echo "== formatting"
"$cargo" fmt --all --check
echo "== tidiness"
"$cargo" test --locked -p stetfs-tidy --test tidy
if [ ${#packages[@]} -eq 0 ]; then
    echo "== no crate is touched"
else
    echo "== unit tests: ${packages[*]}"
    "$cargo" test --locked "${targets[@]}" --bins "${packages[@]}"
fi
echo "== all is well; \`.ci/run\` is what a change must pass in the end"
