"""Machines of a job: which one this is, how many there are and where they meet, from options or the job's engine."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from model_utils.errors import ConfigError

LOCAL_SIZE = "ALBERT_LOCAL_SIZE"  # environment variable of a rank: number of ranks of its machine
MASTER_PORT = 8118  # default of msrun
LARGEST_PORT = 65535


@dataclass(frozen=True)
class Engine:
    """Environment variables by which an engine that starts one launcher a machine tells each about the job.

    Attributes:
        sign: variable that is set where the engine has started this process.
        index: variable with the machine's index, from 0.
        count: variable with the number of machines; "": the engine does not tell.
        names: variable with the names of the machines, or of the first one; "": the engine does not tell.
        launchers: variable whose value begins with the number of launchers on a machine, which must be 1.
    """

    name: str
    sign: str
    index: str
    count: str = ""
    names: str = ""
    launchers: str = ""


def first_name(names: str) -> str:
    """Return the first of names with commas between them, which Slurm may shorten: "gpu[03-07,12],cpu1" -> "gpu03"."""
    first = re.match(r"[^\[,]*(\[[^]]*\][^,]*)?", names.strip())
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first[0] if first else "").strip()


ENGINES = (
    # It stands first: mpirun in a job of Slurm sees the variables of both.
    Engine(
        "Open MPI",
        sign="OMPI_COMM_WORLD_RANK",
        index="OMPI_COMM_WORLD_RANK",
        count="OMPI_COMM_WORLD_SIZE",
        launchers="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # SLURM_STEP_*: set by srun alone, so that a script of sbatch without it is one machine.
    Engine(
        "Slurm",
        sign="SLURM_STEP_NODELIST",
        index="SLURM_PROCID",
        count="SLURM_STEP_NUM_TASKS",
        names="SLURM_STEP_NODELIST",
        launchers="SLURM_STEP_TASKS_PER_NODE",
    ),
    Engine("Volcano or ModelArts", "VC_TASK_INDEX", "VC_TASK_INDEX", "MA_NUM_HOSTS", "VC_WORKER_HOSTS"),
    Engine("a Kubernetes Indexed Job", "JOB_COMPLETION_INDEX", "JOB_COMPLETION_INDEX"),
    Engine("a launcher that sets NODE_RANK", "NODE_RANK", "NODE_RANK", "NNODES", "MASTER_ADDR"),
)


@dataclass(frozen=True)
class Machine:
    """This machine among those of a job.

    Attributes:
        index: from 0; the first machine has rank 0 and the rendezvous.
        count: number of machines.
        local_size: ranks of each machine.
        address: name or address of the first machine.
        port: of MindSpore's scheduler there; the rendezvous has the next one. 0: free ports, for a single machine.
    """

    index: int
    count: int
    local_size: int
    address: str
    port: int

    @property
    def size(self) -> int:
        """Number of ranks of the job."""
        return self.count * self.local_size

    @property
    def ranks(self) -> range:
        """Ranks of this machine."""
        return range(self.index * self.local_size, (self.index + 1) * self.local_size)


def find_machine(
    local_size: int,
    worker_num: int | None = None,
    node_rank: int | None = None,
    master_addr: str = "",
    master_port: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Machine:
    """Return this machine of the job. Options come first, then the engine's variables, then one machine alone.

    An engine's variables must not contradict the options, unless worker_num, node_rank and master_addr are all given.

    Args:
        local_size: ranks of each machine.
        worker_num, node_rank, master_addr, master_port: msrun's options; None or "": not given.

    Raises:
        ConfigError: a number is missing, is not one, is out of range or contradicts the engine; the first machine is
            not known; the engine starts several launchers on a machine.
    """
    engine = next((engine for engine in ENGINES if engine.sign in environment), None)
    if worker_num is not None and node_rank is not None and master_addr:
        engine = None  # a shell that srun has started on each machine, for instance
    count = _machine_count(local_size, worker_num, engine, environment)
    if worker_num is None and not engine and (node_rank is not None or master_addr):
        raise ConfigError(key="worker_num", value=None, expected="the ranks of all machines")
    port = _number(environment, "MASTER_PORT", MASTER_PORT) if master_port is None else master_port
    if not 1 <= port < LARGEST_PORT:
        raise ConfigError(key="master_port", value=port, expected=f"1 to {LARGEST_PORT - 1}")
    if node_rank is not None and not 0 <= node_rank < count:
        raise ConfigError(key="node_rank", value=node_rank, expected=f"0 to {count - 1}")
    if count == 1:
        return Machine(0, 1, local_size, "127.0.0.1", master_port or 0)
    if node_rank is None:
        if engine is None:
            raise ConfigError(key="node_rank", value=None, expected=f"0 to {count - 1}: the index of this machine")
        node_rank = _number(environment, engine.index, 0)
        if node_rank >= count:
            raise ConfigError(key=engine.index, value=node_rank, expected=f"0 to {count - 1} (environment variable)")
    address = master_addr or environment.get("MASTER_ADDR", "")
    if not address and engine:
        address = first_name(environment.get(engine.names, ""))
    if not address:
        raise ConfigError(key="master_addr", value="", expected="the name or address of the first machine")
    return Machine(node_rank, count, local_size, address, port)


def _machine_count(
    local_size: int, worker_num: int | None, engine: Engine | None, environment: Mapping[str, str]
) -> int:
    """Return the number of machines; raises as find_machine."""
    launchers = environment.get(engine.launchers, "1") if engine else "1"
    if engine and not re.fullmatch(r"1(\(x\d+\))?", launchers):
        expected = "1: one launcher on each machine (srun --ntasks-per-node=1, mpirun --map-by ppr:1:node)"
        raise ConfigError(key=engine.launchers, value=launchers, expected=expected)
    count = _number(environment, engine.count, 0) if engine else 0
    if worker_num is not None:
        if worker_num < local_size or worker_num % local_size:
            expected = f"a multiple of the {local_size} processes of a machine"
            raise ConfigError(key="worker_num", value=worker_num, expected=expected)
        if engine and count and worker_num != count * local_size:
            expected = f"{count * local_size}: {local_size} on each of {count} machines of {engine.name}"
            raise ConfigError(key="worker_num", value=worker_num, expected=expected)
        return worker_num // local_size
    if engine is None:
        if (processes := _number(environment, "WORLD_SIZE", 1)) > 1:  # as Kubeflow sets it
            expected = "1, or --worker_num, --node_rank and --master_addr (environment variable)"
            raise ConfigError(key="WORLD_SIZE", value=processes, expected=expected)
        return 1
    if not count:
        expected = f"the ranks of all machines, whose number {engine.name} does not tell ({engine.sign} is set)"
        raise ConfigError(key="worker_num", value=None, expected=expected)
    return count


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    """Return a variable of the environment as a number."""
    text = environment.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal():
        raise ConfigError(key=name, value=text, expected="a whole number (environment variable)")
    return int(text)
