#!/usr/bin/env bash
# Fine-tune on SQuAD v1.1 on several devices of this machine, one process each; the logs are kept in output/logs.
# usage: bash scripts/run_squad_v1_distribute.sh [--nproc N] [arguments of run_squad_v1.py]
#   --nproc N  number of devices; default: DEVICE_NUM from the environment, else all GPUs of this machine
# On several machines: docs/several-machines.md
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
run_distribute squad_v1 "$@"
