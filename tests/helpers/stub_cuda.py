"""A GPU that computes nothing: CUDA libraries whose functions say that they succeeded, and write their names to a file.

With them MindSpore's GPU plugin compiles networks, chooses a kernel for every operation and launches it, so that on a
machine without a GPU a test sees operations that have no kernel there, and what an update asks a GPU for. Memory is the
host's; results mean nothing.
"""

import os
import subprocess
from collections import defaultdict
from pathlib import Path

from model_utils import native_code
from model_utils.nvidia import CUDA_LIBRARIES, gpu_plugin

KERNELS = "libcuda_ops.so.11"  # the plugin's own
DRIVER = "libcuda.so.1"
LOG = "STUB_CUDA_LOG"  # in the environment: the file that calls are written to
# Functions that give something back: their C, by name.
GIVING = {
    "cudaMalloc": "(void **p, size_t n) { *p = calloc(1, n + 4096); return called(__func__); }",
    "cudaHostAlloc": "(void **p, size_t n, unsigned f) { *p = calloc(1, n + 64); return called(__func__); }",
    "cudaMemcpy": "(void *to, const void *from, size_t n, int k) { memcpy(to, from, n); return copied(k); }",
    "cudaMemcpyAsync": "(void *to, const void *of, size_t n, int k, void *s) { memcpy(to, of, n); return copied(k); }",
    "cudaMemGetInfo": "(size_t *f, size_t *n) { *f = *n = 8ul << 30; return 0; }",
    "cudaGetDeviceCount": "(int *n) { *n = 1; return 0; }",
    # cudaDeviceProp of CUDA 11: totalGlobalMem, warpSize, maxThreadsPerBlock and so on, at their places.
    "cudaGetDeviceProperties": (
        "(char *p, int d) { memset(p, 0, 712); *(size_t *)(p + 288) = 8ul << 30; *(int *)(p + 308) = 32;"
        " *(int *)(p + 320) = 1024; *(int *)(p + 360) = 9; *(int *)(p + 388) = 1; return 0; }"
    ),
    "cudaGetErrorString": '(int e) { return "of the stub"; }',
    "cudaGetErrorName": '(int e) { return "of the stub"; }',
    "cudnnGetErrorString": '(int e) { return "of the stub"; }',
    "cudnnGetReductionWorkspaceSize": "(void *h, void *r, void *a, void *c, size_t *n) { *n = 0; return 0; }",
    "cudnnGetReductionIndicesSize": "(void *h, void *r, void *a, void *c, size_t *n) { *n = 0; return 0; }",
    "cudnnGetTensorSizeInBytes": "(void *d, size_t *n) { *n = 0; return 0; }",
    "nvrtcVersion": "(int *a, int *b) { *a = 11; *b = 6; return 0; }",
    "cuDeviceGetCount": "(int *n) { *n = 1; return 0; }",
    "cuDeviceGetName": '(char *name, int n, int d) { strcpy(name, "stub"); return 0; }',
    "cuDriverGetVersion": "(int *n) { *n = 11060; return 0; }",
    "cuDeviceGetAttribute": "(int *v, int a, int d) { *v = a == 75 ? 9 : 0; return 0; }",
}
HANDLES = (
    *("cudaStreamCreate", "cudaStreamCreateWithFlags", "cudaStreamCreateWithPriority"),
    *("cudaEventCreate", "cudaEventCreateWithFlags"),
    *("cublasCreate_v2", "cudnnCreate", "cusolverDnCreate", "cusparseCreate"),
)
ASKED_FOR = "cuInit cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDriverGetVersion"  # by nvidia.py
COMMON = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int called(const char *name) {
  static int file = -2;
  if (file == -2) file = getenv("STUB_CUDA_LOG") ? open(getenv("STUB_CUDA_LOG"), O_WRONLY | O_APPEND) : -1;
  char line[2048];
  int size = snprintf(line, sizeof line, "%s\n", name);
  if (file >= 0 && write(file, line, size) < 0) return 1;
  return 0;
}
static inline int copied(int kind) { return called(kind == 2 ? "copy to the host" : "copy"); }
"""


def build(folder: Path) -> dict[str, str]:
    """Build all libraries there; what a process needs in its environment to find them."""
    plugin = gpu_plugin()
    libraries = defaultdict(set, {DRIVER: set(ASKED_FOR.split())})
    undefined = _symbols(plugin, "--undefined-only")
    for name, _, library in (each.partition("@") for each in undefined):
        if library in CUDA_LIBRARIES:
            libraries[library].add(name)
        elif name.startswith("cu") and not library:
            libraries[DRIVER].add(name)
    defined = {each.partition("@")[0] for each in _symbols(plugin.parent / "gpu" / KERNELS, "--defined-only")}
    libraries[KERNELS] = defined.intersection(undefined)
    for library, names in libraries.items():
        _compile(folder / library, names, versioned=library not in (DRIVER, KERNELS))
    return {
        "LD_PRELOAD": str(folder / KERNELS),  # the plugin looks beside itself first
        "LD_LIBRARY_PATH": f"{folder}:{plugin.parent}/gpu11.6",
        "CUDA_HOME": str(Path(__file__).parents[2] / "scripts/cuda_home"),
    }


def _symbols(library: Path, which: str) -> list[str]:
    """Names as nm prints them, `name@library` where they belong to a version."""
    command = ["nm", "-D", which, str(library)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[-1] for line in lines]


def _compile(library: Path, names: set[str], versioned: bool) -> None:
    """A library of stubs."""
    lines = [COMMON]
    for name in sorted(names):
        if name in GIVING:
            kind = "const char *" if "Error" in name else "int "
            lines.append(f"{kind}{name}{GIVING[name]}")
        elif name in HANDLES:
            lines.append(f"int {name}(void **p) {{ *p = calloc(1, 64); return called(__func__); }}")
        else:
            lines.append(f"int {name}(void) {{ return called(__func__); }}")
    source, script = library.with_suffix(".c"), library.with_suffix(".map")
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    script.write_text(f"{library.name} {{ global: *; }};\n", encoding="utf-8")
    options = [f"-Wl,--version-script={script}"] if versioned else []
    command = [
        *native_code.find_compiler(),
        "-x",
        "c",
        "-w",
        "-O0",
        "-shared",
        "-fPIC",
        str(source),
        "-o",
        str(library),
    ]
    subprocess.run([*command, f"-Wl,-soname,{library.name}", *options], check=True)


def obstacle() -> str:
    """Why no stub can be built here, or would not be found; "" if nothing is in the way."""
    if gpu_plugin() is None:
        return "this mindspore has no GPU plugin"
    if native_code.find_compiler() is None:
        return "no C compiler is installed"
    if not any((Path(folder) / "nm").exists() for folder in os.environ["PATH"].split(":")):
        return "nm (binutils) is not installed"
    toolkit = Path("/usr/local/cuda/lib64/libcudart.so.11.0")
    return f"MindSpore's plugin finds {toolkit} before any stub" if toolkit.exists() else ""
