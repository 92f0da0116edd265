# shellcheck shell=bash
# usage: . scripts/env.sh
# Functions for the other scripts, which source it. `prepare_environment REQUIREMENTS_FILE...` uses the active
# Python environment if it has the packages, else creates and activates .venv.

PROJECT=$(CDPATH="" cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

show_usage() { # ARGUMENTS...: if --help or -h is among them, prints the comment at the top of the script and exits
    case " $* " in
    *" --help "* | *" -h "*) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
    esac
}

find_python() { # prints a Python 3.11 or 3.12 that can make virtual environments
    local candidate
    for candidate in "$PROJECT/.venv/bin/python" python3.11 python3.12 python3 python; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    echo "error: no Python 3.11 or 3.12 with its venv module was found (on Debian and Ubuntu: apt install python3.11-venv)" >&2
    return 1
}

active_environment() { # REQUIREMENTS_FILE...: prints the environment folder of `python`, if it has their packages
    python "$PROJECT/scripts/bootstrap.py" --active "$@" 2>/dev/null
}

show_help() { # NAME ARGUMENTS...: as show_usage, followed by the help of run_NAME.py if there is an environment for it
    local environment
    if (show_usage "${@:2}") | grep . ; then
        environment=$(active_environment requirements.txt) || environment=$PROJECT/.venv
        if [ -x "$environment/bin/python" ]; then "$environment/bin/python" "$PROJECT/run_$1.py" --help; fi
        exit
    fi
}

prepare_environment() {
    local python environment
    unset PYTHONHOME
    if environment=$(active_environment "$@"); then
        echo "using the environment $environment, which has the packages of $*" >&2
    else
        environment=$PROJECT/.venv
        python=$(find_python) || exit 2
        "$python" "$PROJECT/scripts/bootstrap.py" "$@" || exit 2
    fi
    export VIRTUAL_ENV="$environment" PATH="$environment/bin:$PATH" PYTHONUNBUFFERED=1
    # The loader reads the GPU plugin's library path only when Python starts.
    if compgen -G "$VIRTUAL_ENV/lib/python3*/site-packages/nvidia/cudnn/lib/libcudnn.so.8" >/dev/null; then
        # shellcheck source=scripts/gpu_env.sh
        . "$PROJECT/scripts/gpu_env.sh"
    fi
}

run_single() { # NAME ARGUMENTS...: replaces this shell with run_NAME.py; its output also goes to a log
    local log
    show_help "$@"
    prepare_environment requirements.txt
    log="$PROJECT/output/logs/$1_$(date +%Y%m%d_%H%M%S)_$$.log"
    mkdir -p "${log%/*}"
    echo "log: $log"
    # tee ignores signals and closed pipes, because the script still writes after Ctrl-C, SIGTERM or the end of the terminal.
    exec python "$PROJECT/run_$1.py" "${@:2}" > >(trap '' INT TERM HUP PIPE; exec tee "$log") 2>&1
}

run_distribute() { # NAME [--nproc N] [options of several machines] ARGUMENTS...: runs run_NAME.py, a process per device
    local name=$1 nproc=${DEVICE_NUM:-} logs machines=() arguments=()
    shift
    show_help "$name" "$@"
    prepare_environment requirements.txt
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
    logs="$PROJECT/output/logs/${name}_$(date +%Y%m%d_%H%M%S)_$$"
    mkdir -p "$logs"
    echo "logs: $logs"
    export GLOG_v="${GLOG_v:-3}" # errors only: MindSpore's warnings at every start do not matter
    exec python "$PROJECT/scripts/launch.py" "${machines[@]+"${machines[@]}"}" "$nproc" "$logs" "$PROJECT/run_$name.py" "${arguments[@]+"${arguments[@]}"}"
}

[ "${BASH_SOURCE[0]}" != "$0" ] || show_usage --help # not sourced
