#!/usr/bin/env bash
# All checks: ruff, then every test file in a process of its own, because MindSpore keeps what it compiles in memory.
# usage: bash scripts/test.sh [--slow] [--oracles] [pytest arguments]
#   --slow     also the tests that take minutes
#   --oracles  also the comparisons with torch, transformers and onnxruntime, which are installed then
# With test files or folders among the pytest arguments only those run.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

requirements=(requirements.txt requirements-test.txt)
options=() chosen=()
for word in "$@"; do
    case $word in
    --oracles) requirements=(requirements.txt requirements-dev.txt) options+=("$word") ;;
    *) if [ -e "${word%%::*}" ]; then chosen+=("$(realpath "${word%%::*}")${word#"${word%%::*}"}"); else options+=("$word"); fi ;;
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
for group in "${chosen[@]}"; do
    printf '\n%s\n' "--- ${group#"$PROJECT"/}"
    report=$reports/$(printf '%s' "$group" | tr -c 'A-Za-z0-9' _).xml
    python -m pytest "${options[@]+"${options[@]}"}" "$group" --junitxml="$report"
    case $? in
    0 | 5) ;; # 5: no test of this file was selected
    2) [ -e "$report" ] || exit 2; failed=1 ;;
    *) failed=1 ;;
    esac
    [ -e "$report" ] || echo "error: pytest ended without a report for $group"
done
python - "$reports" ${#chosen[@]} <<'END' || failed=1
import sys, xml.etree.ElementTree as tree
from pathlib import Path

suites = [suite for file in Path(sys.argv[1]).iterdir() for suite in tree.parse(file).iter("testsuite")]
total = {key: sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")}
bad = total["failures"] + total["errors"] + int(sys.argv[2]) - len(suites)
print(f"\n{total['tests'] - total['failures'] - total['errors'] - total['skipped']} passed, {bad} failed, {total['skipped']} skipped")
sys.exit(bad > 0 or total["tests"] == 0)
END
exit $failed
