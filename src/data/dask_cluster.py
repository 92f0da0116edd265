"""Calls on the workers of a Dask cluster, as src/data/worker_processes.py makes them on this machine: connect.

The scheduler needs dask alone, because functions travel as bytes. Workers import the project, and must have the same
modules and versions as this machine: else results would depend on where they are computed.
"""

import contextlib
import hashlib
import operator
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from typing import Any

from model_utils.errors import ConfigError, UserError
from model_utils.optional import require
from model_utils.schema import ROOT
from src.data.worker_processes import CALLS, in_order

CONNECT_SECONDS = 20
IDLE_SECONDS = 600  # without a worker; a cluster may replace its machines meanwhile
ADVICE = "start it with the project's folder in PYTHONPATH and with requirements-scale.txt installed"
MAX_CALLS = 512  # in flight; a thread waits for each


@cache
def environment(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of Python and of packages, and a hash of the project's modules."""
    digest = hashlib.sha256()
    for file in sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("model_utils/**/*.py")]):
        digest.update(file.read_bytes())
    python = ".".join(map(str, sys.version_info[:2]))
    return {"Python": python, **{name: version(name) for name in packages}, "project": digest.hexdigest()[:16]}


def _check(worker: str, found: dict[str, str] | Exception, needed: dict[str, str]) -> None:
    """Raise UserError for a worker with another environment, or without one."""
    if isinstance(found, Exception):
        raise UserError(f"the Dask worker {worker} cannot run the project ({found}): {ADVICE}")
    for name, value in needed.items():
        if found[name] != value:
            difference = f"has {name} {found[name]}, this machine has {value}"
            raise UserError(f"the Dask worker {worker} {difference}: give both the same, and start the worker again")


def _call_checked(function: Callable, packages: tuple[str, ...], needed: dict[str, str], *arguments: Any) -> Any:
    """Return the function's result from a worker, which may have joined after connect."""
    from distributed import get_worker

    _check(get_worker().address, environment(packages), needed)
    return function(*arguments)


@dataclass(frozen=True)
class Cluster:
    """Dask cluster whose workers have this machine's project and packages."""

    client: Any
    address: str
    packages: tuple[str, ...]

    @property
    def threads(self) -> int:
        """Number of calls that the present workers compute at once."""
        try:
            return sum(self.client.nthreads().values())
        except (CancelledError, OSError) as error:
            raise self._lost(error) from error

    @contextlib.contextmanager
    def results_of(self, function: Callable, arguments: Iterable[tuple]) -> Iterator[Iterator[Any]]:
        """Yield an iterator over the results of function(*ARGUMENTS) for each item of `arguments`, in their order.

        A call whose worker ends is made again, and workers that join take part. The iterator raises the function's
        exceptions, and UserError if the cluster is lost; it takes only a few arguments ahead of its results.
        """
        checked = partial(_call_checked, function, self.packages, environment(self.packages))
        # A call and not Client.scatter, whose objects are lost with the workers that hold them.
        remote_function = self.client.submit(pickle.loads, pickle.dumps(checked), pure=False)
        threads = ThreadPoolExecutor(MAX_CALLS)
        futures = (threads.submit(self._call, remote_function, call_arguments) for call_arguments in arguments)
        try:
            yield in_order(futures, lambda: min(MAX_CALLS, max(1, CALLS * self.threads)))
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # the end of the client ends their waiting

    def _call(self, remote_function: Any, arguments: tuple) -> Any:
        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        last_seen = time.monotonic()
        try:
            future = self.client.submit(operator.call, remote_function, *arguments, pure=False)
            while not future.done():
                with contextlib.suppress(TimeoutError):
                    future.exception(timeout=CONNECT_SECONDS)
                if self.threads:
                    last_seen = time.monotonic()
                elif time.monotonic() - last_seen > IDLE_SECONDS:
                    raise UserError(f"the Dask scheduler {self.address} has had no worker for {IDLE_SECONDS} s")
            return future.result()
        except KilledWorker as error:
            raise UserError(f"Dask workers ended whenever they got one text; give them more memory ({error})") from None
        except ImportError as error:
            raise UserError(f"a Dask worker cannot run the project ({error}): {ADVICE}") from error
        except (CancelledError, CommClosedError) as error:
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> UserError:
        return UserError(f"the Dask scheduler {self.address} was lost ({error}); start the same command again")


@contextlib.contextmanager
def connect(address: str, packages: tuple[str, ...]) -> Iterator[Cluster]:
    """Yield a cluster whose workers have this machine's modules of the project and versions of `packages`.

    Raises:
        ConfigError: no scheduler answers within CONNECT_SECONDS.
        UserError: dask is missing, the scheduler has no worker, or a worker differs.
    """
    distributed = require("distributed", "requirements-scale.txt", "executor=dask")
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        expected = "the address of a Dask scheduler, such as tcp://10.0.0.1:8786"
        hint = f"none answered within {CONNECT_SECONDS} s ({error})"
        raise ConfigError(key="scheduler", value=address, expected=expected, hint=hint) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            advice = f"start some with `PYTHONPATH=. dask worker {address} --nthreads 1`"
            raise UserError(f"the Dask scheduler {address} has no workers: {advice}") from None
        for worker, found in client.run(environment, packages, on_error="return").items():
            _check(worker, found, environment(packages))
        yield Cluster(client, address, packages)
