"""The rendezvous of a job over TCP, and how a launcher finds its machine among those of a job."""

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from model_utils import rendezvous as rendezvous_module
from model_utils.errors import ConfigError, UserError
from model_utils.job_machines import Machine, find_machine, first_name
from model_utils.rendezvous import Rendezvous, RendezvousClient, RendezvousServer

KEY = b"a secret"


@pytest.fixture
def rendezvous() -> Rendezvous:
    """Two machines with two ranks each."""
    return Rendezvous(4, 2)


@pytest.fixture
def server(rendezvous: Rendezvous) -> RendezvousServer:
    return RendezvousServer(rendezvous, ("127.0.0.1", 0), KEY)


def test_four_clients_exchange_values_of_any_size(server: RendezvousServer) -> None:
    def act(rank: int) -> list[list[int]]:
        client = RendezvousClient(server.address, KEY)
        answers = []
        for barrier in range(1, 51):
            entries = client.exchange(rank, barrier, "a sum", bytes(rank * 40_000 + barrier), 60)
            assert [name for name, _ in entries] == ["a sum"] * 4
            answers.append([len(value) for _, value in entries])
        return answers

    with ThreadPoolExecutor(4) as pool:
        for answers in pool.map(act, range(4)):
            assert answers == [[rank * 40_000 + barrier for rank in range(4)] for barrier in range(1, 51)]
    assert len(server.rendezvous._barriers) == 1


def test_a_client_with_another_key_is_refused_and_a_silent_one_blocks_nobody(server: RendezvousServer) -> None:
    with socket.create_connection(server.address):
        with pytest.raises(UserError):
            RendezvousClient(server.address, b"another secret")
        assert RendezvousClient(server.address, KEY).report(0, {}) == ""


def test_a_client_waits_for_a_server_that_starts_later() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    with pytest.raises(UserError, match=f"127.0.0.1:{address[1]}"):
        RendezvousClient(address, KEY, start_seconds=0.1)
    threading.Timer(0.5, RendezvousServer, (Rendezvous(1), address, KEY)).start()
    assert RendezvousClient(address, KEY, start_seconds=30).report(0, {}) == ""


def test_another_service_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_module, "SILENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as service, pytest.raises(UserError, match="nothing was received"):
        RendezvousClient(service.getsockname(), KEY)


def test_another_service_that_says_too_little_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_module, "SILENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as service, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(RendezvousClient, service.getsockname(), KEY)
        client, _ = service.accept()
        client.sendall(b"\0\0\0\x20#C")  # two of 32 bytes
        with client, pytest.raises(UserError, match="nothing was received"):
            answer.result(10)


def test_a_rank_whose_launcher_has_ended_ends(server: RendezvousServer) -> None:
    client = RendezvousClient(server.address, KEY, launcher=os.getpid())  # which is not this process's parent
    with pytest.raises(UserError, match=f"process {os.getpid()}.*the features"):
        client.exchange(0, 1, "the features", b"", 60)


def test_machines_of_another_form_or_with_the_same_index_are_refused(server: RendezvousServer) -> None:
    client = RendezvousClient(server.address, KEY)
    with pytest.raises(UserError, match=r"machine 0 has not joined the job within 0\.1 s"):
        client.join(1, 4, 2, 0.1)
    for index, size, local_size, named in ((1, 4, 2, "--node_rank"), (0, 4, 1, "--nproc"), (0, 6, 2, "--worker_num")):
        with pytest.raises(UserError, match=named):
            client.join(index, size, local_size, 0.1)


def test_machines_wait_for_each_other(server: RendezvousServer) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(RendezvousClient(server.address, KEY).join, 0, 4, 2, 60)
        time.sleep(0.2)
        assert not first.done()
        RendezvousClient(server.address, KEY).join(1, 4, 2, 60)
        assert first.result(1) is None


def test_a_port_in_use_is_named(server: RendezvousServer) -> None:
    with pytest.raises(UserError, match=f"port {server.address[1]}"):
        RendezvousServer(Rendezvous(1), server.address, KEY)


def test_failures_reach_the_other_machines_once(rendezvous: Rendezvous) -> None:
    assert rendezvous.report(0, {}) == "" and rendezvous.report(1, {3: ""}) == ""
    assert rendezvous.report(0, {1: "no room"}) == ""  # a machine knows its own
    assert rendezvous.report(1, {2: "rank 1 has ended", 3: ""}) == "rank 1 failed: no room"
    assert rendezvous.report(0, {0: "", 1: "no room"}) == ""  # of several, the first counts
    assert not rendezvous.has_running_ranks()


def test_a_machine_that_does_not_report_is_lost() -> None:
    """Its time is counted by the server's launcher, so a job that is suspended as a whole loses none."""
    rendezvous = Rendezvous(2, 1)
    rendezvous.count_silence(1000)  # it has not started yet
    rendezvous.report(1, {})
    rendezvous.count_silence(rendezvous_module.SILENCE)
    assert rendezvous.report(0, {}) == "" and rendezvous.has_running_ranks()
    threading.Timer(0.2, rendezvous.count_silence, (0.1,)).start()
    with pytest.raises(UserError, match="rank 1 has not reached the features: machine 1 has not answered"):
        rendezvous.exchange(0, 1, "the features", b"", 60)
    assert rendezvous.report(0, {0: ""}).startswith("machine 1") and not rendezvous.has_running_ranks()


def test_a_machine_whose_ranks_have_ended_may_leave() -> None:
    """While rank 0 still writes its results."""
    rendezvous = Rendezvous(2, 1)
    rendezvous.report(1, {1: ""})
    rendezvous.count_silence(rendezvous_module.SILENCE + 1)
    assert rendezvous.report(0, {}) == ""


def test_a_server_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch, server: RendezvousServer) -> None:
    client = RendezvousClient(server.address, KEY)
    monkeypatch.setattr(rendezvous_module, "SILENCE", 2)
    monkeypatch.setattr(server.rendezvous, "report", lambda *_: time.sleep(5))
    assert "has not answered for 2 s" in client.report(1, {})


# --- machines of a job ---

SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NODELIST": "localhost,gpu[03-07]"}
SLURM |= {"SLURM_STEP_TASKS_PER_NODE": "1(x3)"}
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
MODEL_ARTS = {"VC_TASK_INDEX": "1", "MA_NUM_HOSTS": "2", "VC_WORKER_HOSTS": "localhost,other"}
PODS = {"JOB_COMPLETION_INDEX": "1"}
TORCHRUN = {"NODE_RANK": "1", "NNODES": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("options", "environment", "index", "count", "port"),
    [
        ({}, {}, 0, 1, 0),
        ({}, {"SLURM_PROCID": "0", "SLURM_NNODES": "2"}, 0, 1, 0),  # a script of sbatch that does not use srun
        ({"worker_num": 6, "node_rank": 2, "master_addr": "localhost", "master_port": 9000}, {}, 2, 3, 9000),
        ({}, SLURM, 1, 3, 8118),
        ({"master_addr": "localhost"}, MPI, 1, 2, 8118),
        ({"master_addr": "localhost"}, SLURM | MPI, 1, 2, 8118),
        ({}, MODEL_ARTS, 1, 2, 8118),
        ({"worker_num": 4, "master_addr": "localhost"}, PODS, 1, 2, 8118),
        ({}, TORCHRUN, 1, 2, 29500),
        ({"worker_num": 6}, SLURM, 1, 3, 8118),
        ({"worker_num": 2, "node_rank": 0, "master_addr": "localhost"}, {}, 0, 1, 0),
        ({"worker_num": 4, "node_rank": 1, "master_addr": "localhost"}, SLURM, 1, 2, 8118),  # srun --pty bash on each
        ({"node_rank": 0}, TORCHRUN, 0, 2, 29500),
    ],
)
def test_a_launcher_finds_its_machine(
    options: dict, environment: dict[str, str], index: int, count: int, port: int
) -> None:
    machine = find_machine(2, **options, environment=environment)
    assert machine == Machine(index, count, 2, "localhost" if count > 1 else "127.0.0.1", port)
    assert machine.size == 2 * count and list(machine.ranks) == [2 * index, 2 * index + 1]


@pytest.mark.parametrize(
    ("options", "environment", "key"),
    [
        ({"worker_num": 5}, {}, "worker_num"),
        ({"worker_num": 1}, {}, "worker_num"),
        ({"worker_num": 4, "master_addr": "localhost"}, {}, "node_rank"),
        ({"worker_num": 4, "node_rank": 2, "master_addr": "localhost"}, {}, "node_rank"),
        ({"worker_num": 4, "node_rank": 1}, {}, "master_addr"),
        ({"worker_num": 4, "node_rank": 1, "master_addr": "localhost", "master_port": 65535}, {}, "master_port"),
        ({"master_addr": "localhost"}, PODS, "worker_num"),  # which must not train on every machine alone
        ({"node_rank": 1, "master_addr": "localhost"}, {}, "worker_num"),
        ({"worker_num": 2, "node_rank": 1, "master_addr": "localhost"}, {}, "node_rank"),
        ({"worker_num": 2}, SLURM, "worker_num"),
        ({}, SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, "SLURM_STEP_TASKS_PER_NODE"),
        ({}, SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1,2"}, "SLURM_STEP_TASKS_PER_NODE"),
        ({}, MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "16"}, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ({}, MPI, "master_addr"),
        ({}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "WORLD_SIZE"),  # as Kubeflow sets them
        ({}, SLURM | {"SLURM_STEP_NUM_TASKS": "many"}, "SLURM_STEP_NUM_TASKS"),
    ],
)
def test_an_incomplete_description_of_machines_is_refused(options: dict, environment: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        find_machine(2, **options, environment=environment)
    assert error.value.key == key


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu03", "gpu03"),
        (" one, two", "one"),
        ("gpu[03-07,12],cpu1", "gpu03"),
        ("a-1,a-2", "a-1"),
        ("rack2-n[7]", "rack2-n7"),
        ("n[1-2]-ib", "n1-ib"),
    ],
)
def test_the_first_of_several_names(nodes: str, first: str) -> None:
    assert first_name(nodes) == first
