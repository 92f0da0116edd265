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

check_task() { # ARGUMENTS...: exits if the first one is not the TASK of a run_TASK.py; --help prints the help of both
    local files=("$PROJECT"/run_*.py) tasks environment
    case ${1:-} in
    --help | -h) show_usage "$1" ;;
    esac
    if ! [ -f "$PROJECT/run_${1:-}.py" ]; then
        files=("${files[@]##*/run_}")
        tasks=${files[*]%.py}
        echo "error: the task, which is the first argument, is '${1:-}', allowed are ${tasks// /, }" >&2
        exit 2
    fi
    if (show_usage "${@:2}") | grep .; then
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

[ "${BASH_SOURCE[0]}" != "$0" ] || show_usage --help # not sourced
