#!/usr/bin/env bash
# Run a task on one device; the log is kept in output/logs.
# usage: bash scripts/run_single.sh TASK [arguments of run_TASK.py]
#   TASK  pretrain, classifier, race, squad_v1, squad_v2, ner, embeddings or multitask
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
check_task "$@"
prepare_environment requirements.txt
log="$PROJECT/output/logs/$1_$(date +%Y%m%d_%H%M%S)_$$.log"
mkdir -p "${log%/*}"
echo "log: $log"
# tee ignores signals and closed pipes, because the script still writes after Ctrl-C, SIGTERM or the end of the terminal.
exec python "$PROJECT/run_$1.py" "${@:2}" > >(trap '' INT TERM HUP PIPE; exec tee "$log") 2>&1
