#!/usr/bin/env bash
# Run a task on several devices of this machine, one process each; the logs are kept in output/logs.
# usage: bash scripts/run_distribute.sh TASK [--nproc N] [arguments of run_TASK.py]
#   TASK       pretrain, classifier, race, squad_v1, squad_v2, ner, embeddings or multitask
#   --nproc N  number of devices; default: DEVICE_NUM from the environment, else all GPUs of this machine
# On several machines, with the options of MindSpore's msrun: docs/several-machines.md
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
check_task "$@"
prepare_environment requirements.txt
task=$1
nproc=${DEVICE_NUM:-}
machines=()
arguments=()
shift
while [ $# -gt 0 ]; do
    case $1 in
    --nproc | --local_worker_num) nproc=${2:-nothing} && if [ $# -gt 1 ]; then shift; fi ;;
    --nproc=* | --local_worker_num=*) nproc=${1#*=} ;;
    --worker_num | --node_rank | --master_addr | --master_port) machines+=("$1=${2:-}") && if [ $# -gt 1 ]; then shift; fi ;;
    --worker_num=* | --node_rank=* | --master_addr=* | --master_port=*) machines+=("$1") ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
[ -n "$nproc" ] || nproc=$(cd "$PROJECT" && python -c 'from model_utils.nvidia import nvidia_gpus; print(len(nvidia_gpus()))')
if ! [[ $nproc =~ ^[1-9][0-9]*$ ]]; then
    echo "error: the number of processes is '$nproc', allowed is 1 and more: give --nproc N or set DEVICE_NUM" >&2
    exit 2
fi
logs="$PROJECT/output/logs/${task}_$(date +%Y%m%d_%H%M%S)_$$"
echo "logs: $logs"
export GLOG_v="${GLOG_v:-3}" # errors only: MindSpore's warnings at every start do not matter
exec python "$PROJECT/scripts/launch.py" "${machines[@]+"${machines[@]}"}" "$nproc" "$logs" "$PROJECT/run_$task.py" "${arguments[@]+"${arguments[@]}"}"
