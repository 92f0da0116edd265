# shellcheck shell=bash
# Sourced by the other scripts: `prepare_environment REQUIREMENTS_FILE...` takes the active environment where it has what
# the files name, and makes and activates .venv elsewhere.

PROJECT=$(CDPATH="" cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

show_usage() { # ARGUMENTS...: where --help or -h is among them, prints the comment that the script begins with, and exits
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

active_environment() { # REQUIREMENTS_FILE...: prints the folder of the environment of `python`, if it has what they name
    python "$PROJECT/scripts/bootstrap.py" --active "$@" 2>/dev/null
}

show_help() { # NAME ARGUMENTS...: as show_usage; then what run_NAME.py says, if there is an environment for it
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
    # The GPU plugin's libraries must be known before Python starts.
    if compgen -G "$VIRTUAL_ENV/lib/python3*/site-packages/nvidia/cudnn/lib/libcudnn.so.8" >/dev/null; then
        # shellcheck source=scripts/gpu_env.sh
        . "$PROJECT/scripts/gpu_env.sh"
    fi
}

run_single() { # NAME ARGUMENTS...: replaces this shell by run_NAME.py, whose output also goes to a log
    local log
    show_help "$@"
    prepare_environment requirements.txt
    log="$PROJECT/output/logs/$1_$(date +%Y%m%d_%H%M%S)_$$.log"
    mkdir -p "${log%/*}"
    echo "log: $log"
    # The writer of the log must outlive the script, which still writes after Ctrl-C, SIGTERM or the end of the terminal, and who reads along.
    exec python "$PROJECT/run_$1.py" "${@:2}" > >(trap '' INT TERM HUP PIPE; exec tee "$log") 2>&1
}

run_distribute() { # NAME [--nproc N] ARGUMENTS...: run_NAME.py in one process a device
    local name=$1 nproc=${DEVICE_NUM:-} logs arguments=()
    shift
    show_help "$name" "$@"
    prepare_environment requirements.txt
    while [ $# -gt 0 ]; do
        case $1 in
        --nproc) nproc=${2:-nothing} && shift $(($# > 1)) ;;
        --nproc=*) nproc=${1#--nproc=} ;;
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
    export GLOG_v="${GLOG_v:-3}" # errors only: its warnings at every start say nothing is wrong
    exec python "$PROJECT/scripts/launch.py" "$nproc" "$logs" "$PROJECT/run_$name.py" --distribute true --device_num "$nproc" "${arguments[@]+"${arguments[@]}"}"
}
