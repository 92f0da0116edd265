#!/usr/bin/env bash
# Fine-tune on RACE on one device; the log is kept in output/logs.
# usage: bash scripts/run_race_single.sh [arguments of run_race.py]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
run_single race "$@"
