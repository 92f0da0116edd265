# shellcheck shell=bash
# usage: . scripts/gpu_env.sh
# Source it before Python, with the environment active, so that MindSpore finds its GPU plugin's libraries:
#   . .venv/bin/activate && pip install -r requirements-gpu.txt && . scripts/gpu_env.sh && python -m model_utils.device

if [ "${BASH_SOURCE[0]}" = "$0" ]; then # not sourced: all that it would set ends with it
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
fi

gpu_env() {
    local project site folder
    project=$(CDPATH="" cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    site=$("${VIRTUAL_ENV:-$project/.venv}/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return 1
    if ! [ -e "$site/nvidia/cudnn/lib/libcudnn.so.8" ]; then
        echo "error: the CUDA libraries are not in $site: pip install -r requirements-gpu.txt" >&2
        return 1
    fi
    for folder in "$site"/nvidia/*/lib "$site/mindspore/lib/plugin/gpu11.6"; do
        case ":${LD_LIBRARY_PATH:-}:" in
        *":$folder:"*) ;;
        *) LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ;;
        esac
    done
    export LD_LIBRARY_PATH
    export CUDA_HOME=$project/scripts/cuda_home # its nvcc only tells MindSpore which plugin to load
    export CUDA_CACHE_MAXSIZE=4000000000        # holds all kernels that the driver compiles for newer GPUs
}

gpu_env
