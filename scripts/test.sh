#!/usr/bin/env bash
# Run all checks: ruff, import-linter, then every test file in its own process, because MindSpore keeps compiled graphs
# in memory. One process per core: MindSpore's threads wait in busy loops, so processes that share cores are very slow.
# usage: bash scripts/test.sh [--slow] [--oracles] [pytest arguments]
#   --slow     also run the tests that take minutes
#   --oracles  also install torch, transformers, onnxruntime and TensorFlow and run the comparisons with them
# If the pytest arguments contain test files or folders, only those run.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
show_usage "$@"

requirements=(requirements.txt requirements-test.txt)
options=() chosen=() before=
for word in "$@"; do
    case $before in
    # These options take a value, which must not be mistaken for a test file.
    -[ckmopW] | --deselect | --ignore | --ignore-glob | --rootdir | --basetemp | --confcutdir | --junitxml) options+=("$word") before= && continue ;;
    esac
    before=$word
    case $word in
    --oracles) requirements=(requirements.txt requirements-dev.txt requirements-convert.txt) options+=("$word") ;;
    *) file=${word%%::*}
        if [ -e "$file" ]; then chosen+=("$(realpath "$file")${word#"$file"}")
        elif [ -n "$file" ] && [ -e "$PROJECT/$file" ]; then chosen+=("$PROJECT/$word")
        else options+=("$word"); fi ;;
    esac
done
prepare_environment "${requirements[@]}"
cd "$PROJECT" || exit 2
shopt -s nullglob
[ ${#chosen[@]} -gt 0 ] || chosen=(tests/test_*.py tests/*/test_*.py)
shopt -u nullglob

reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
failed=0
python -m ruff check . || failed=1
python -m ruff format --check . || failed=1
lint-imports --no-logo --no-cache || failed=1
CORES=$(python -c 'import os; print(*sorted(os.sched_getaffinity(0))[:4])') # at most 4: a process takes up to 2 GB
MOST_SECONDS=1800 # timeout of a test file; after 300 s in one test pytest prints the stacks of all threads
run_group() { # GROUP OPTIONS...: runs pytest on a free core and prints its output when it is complete
    local group=$1 report core lock output code
    report=$reports/$(printf '%s' "$group" | tr -c 'A-Za-z0-9' _).xml
    for core in $CORES; do
        exec {lock}>"$reports/core-$core"
        flock -n "$lock" && break
    done
    # `timeout` runs in its own process group, which a terminal's Ctrl-C does not reach.
    output=$(trap 'kill $!' INT TERM HUP
        timeout --kill-after=10 "$MOST_SECONDS" \
            taskset -c "$core" python -m pytest -o faulthandler_timeout=300 "${@:2}" "$group" --junitxml="$report" 2>&1 &
        wait $!)
    code=$?
    [ $code != 124 ] && [ $code != 137 ] || output+=$'\n'"error: $group took more than $MOST_SECONDS s, or was killed"
    [ -e "$report" ] || output+=$'\n'"error: pytest ended without a report for $group"
    { flock 9 && printf '\n--- %s\n%s\n' "${group#"$PROJECT"/}" "$output"; } 9>"$reports/printing"
    case $code in
    0 | 5) ;; # 5: no test of this file was selected
    2 | 4) [ -e "$report" ] || exit 255 # a wrong pytest argument: 255 makes xargs stop
        # Interrupted, or the named test does not exist: remove the empty report, so that the group counts as failed.
        ! grep -q 'errors="0" failures="0"' "$report" || rm "$report"
        exit 1 ;;
    *) exit 1 ;;
    esac
}
export -f run_group
export reports PROJECT CORES MOST_SECONDS
# shellcheck disable=SC2016
printf '%s\0' "${chosen[@]}" |
    xargs -0 -P "$(wc -w <<<"$CORES")" -I{} bash -c 'run_group "$@"' _ {} "${options[@]+"${options[@]}"}" || failed=1
python - "$reports" ${#chosen[@]} <<'END' || failed=1
import sys, xml.etree.ElementTree as tree
from collections import Counter
from pathlib import Path

suites = [suite for file in Path(sys.argv[1]).glob('*.xml') for suite in tree.parse(file).iter("testsuite")]
total = {key: sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")}
bad = total["failures"] + total["errors"] + int(sys.argv[2]) - len(suites)
reasons = Counter(skip.get("message") for suite in suites for skip in suite.iter("skipped"))
print()
for reason, count in reasons.most_common():
    print(f"{count} skipped: {reason}")
print(f"{total['tests'] - total['failures'] - total['errors'] - total['skipped']} passed, {bad} failed, {total['skipped']} skipped")
sys.exit(bad > 0 or total["tests"] == 0)
END
exit $failed
