#!/usr/bin/env bash
# Pre-train on one device; the log is kept in output/logs.
# usage: bash scripts/run_pretrain_single.sh [arguments of run_pretrain.py]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
run_single pretrain "$@"
