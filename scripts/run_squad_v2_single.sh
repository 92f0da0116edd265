#!/usr/bin/env bash
# Fine-tune on SQuAD v2.0 on one device; the log is kept in output/logs.
# usage: bash scripts/run_squad_v2_single.sh [arguments of run_squad_v2.py]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
run_single squad_v2 "$@"
