#!/usr/bin/env bash
# Fine-tune a classifier on one device; the log is kept in output/logs.
# usage: bash scripts/run_classifier_single.sh [arguments of run_classifier.py]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
run_single classifier "$@"
