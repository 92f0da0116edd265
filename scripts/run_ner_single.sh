#!/usr/bin/env bash
# Fine-tune a token classifier on one device; the log is kept in output/logs.
# usage: bash scripts/run_ner_single.sh [arguments of run_ner.py]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
run_single ner "$@"
