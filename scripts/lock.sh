#!/usr/bin/env bash
# Write requirements*.txt: the dependencies of pyproject.toml, each with one of its extras, and all that they need.
# A package has the same version in all files, and keeps it unless pyproject.toml or an argument asks for another.
# Needs `uv`, which the extra `test` brings.
# usage: bash scripts/lock.sh [arguments of `uv pip compile`, such as --upgrade]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
show_usage "$@"
cd "$PROJECT"

resolve() { # OUTPUT ARGUMENTS...: uv prefers the versions that OUTPUT has
    uv pip compile --quiet pyproject.toml --output-file "$1" --python-platform x86_64-manylinux_2_28 --no-emit-index-url \
        --annotation-style line --custom-compile-command "bash scripts/lock.sh" "${@:2}" >/dev/null
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat requirements*.txt >"$folder/3.11"
resolve "$folder/3.11" --all-extras --python-version 3.11 "$@"
cp "$folder/3.11" "$folder/3.12"
resolve "$folder/3.12" --all-extras --python-version 3.12
diff "$folder/3.11" "$folder/3.12" || { echo "error: Python 3.11 and 3.12 need different packages" >&2 && exit 1; }
for extra in "" arrow chinese scale onnx test dev convert gpu; do
    file=requirements${extra:+-$extra}.txt
    cp "$folder/3.11" "$file"
    resolve "$file" --python-version 3.11 ${extra:+--extra "$extra"} --offline # uv's cache has all of it by now
done
