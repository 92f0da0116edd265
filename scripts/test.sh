#!/usr/bin/env bash
# Run all checks: ruff, mypy, import-linter, and the tests.
# usage: bash scripts/test.sh [--fast] [--slow] [--oracles] [pytest arguments]
#   --fast     leave out the test files that compile graphs: at most 90 seconds on two cores
#   --slow     also run the tests that take minutes
#   --oracles  also install torch, transformers and TensorFlow, and run the comparisons with them and onnxruntime
# If the pytest arguments contain test files or folders, only those run.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
show_usage "$@"
requirements=(requirements.txt requirements-test.txt)
case " $* " in
*" --oracles "*) requirements+=(requirements-dev.txt requirements-convert.txt) ;;
esac
prepare_environment "${requirements[@]}"
exec python "$PROJECT/scripts/run_tests.py" "$@"
