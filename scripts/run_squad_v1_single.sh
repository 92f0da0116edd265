#!/usr/bin/env bash
# Fine-tune on SQuAD v1.1 on one device; the log is kept in output/logs.
# usage: bash scripts/run_squad_v1_single.sh [arguments of run_squad_v1.py]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
run_single squad_v1 "$@"
