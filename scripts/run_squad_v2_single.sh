#!/usr/bin/env bash
exec bash "$(dirname "${BASH_SOURCE[0]}")/run_single.sh" squad_v2 "$@"
