"""Count requests a second of predict.py --serve and of transformers behind FastAPI: python -m benchmarks.server --help.

Clients in threads of this process send single sentences, each its next one when it has the answer. All servers run with
the same random weights, and are stopped while it is not their turn. transformers has two: one computes requests as they
come, in a thread each, the other one after the other.
"""

import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.commands import PROJECT, CommandsConfig, measure_in_turns, start_process
from benchmarks.random_model import write_random_models
from model_utils.config import run_main
from model_utils.errors import UserError
from model_utils.schema import option
from src.albert_config import PRESETS
from src.inference.deploy_config import COMPUTE_TYPES
from src.text.text_tables import read_table

LENGTH = 128  # tokens of a sentence at most
TIMEOUT = 300  # s for an answer
LOG_END = 1000  # characters of a server's messages that an error quotes


class ServerConfig(CommandsConfig):
    """Time servers under load: python -m benchmarks.server."""

    text: str = option("", "a table with a column sentence (GLUE's SST-2)", required=True)
    clients: int = option(16, "that wait for an answer at any time", minimum=1)
    requests: int = option(320, "of a turn, after as many as there are clients", minimum=1)
    compute_type: str = option("float32", "of this project; the others compute in float32", choices=COMPUTE_TYPES)


class Server:
    """Process that prints its address and answers POST /predict.

    Args:
        words: its command, behind `python -m`. log: for its stderr.

    Raises:
        UserError: the process ends before it prints an address, or answers with another status than 200.
    """

    def __init__(self, name: str, words: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("w") as messages:
            self.process = start_process(words, signal.SIGKILL, stdout=subprocess.PIPE, stderr=messages, text=True)
        assert self.process.stdout is not None  # a pipe
        for line in self.process.stdout:
            if address := re.search(r"http://([\d.]+):(\d+)/", line):
                self.address = address[1], int(address[2])
                return
        raise UserError(f"the server of {name} does not start: {self._last_messages()}")

    def body(self, text: str) -> dict[str, Any]:
        """Return a request."""
        return {"text": text}

    def label(self, reply: dict[str, Any]) -> str:
        """Return the label of an answer."""
        return reply["label"]

    def send(self, texts: list[str]) -> list[tuple[float, str]]:
        """Send texts one after the other over one connection; return latency in seconds and label of each."""
        connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT)
        results = []
        for text in texts:
            start = time.perf_counter()
            connection.request("POST", "/predict", json.dumps(self.body(text)), {"Content-Type": "application/json"})
            response = connection.getresponse()
            reply = response.read()
            if response.status != http.client.OK:
                raise UserError(f"{self.name} answers {response.status}: {reply.decode()}\n{self._last_messages()}")
            results.append((time.perf_counter() - start, self.label(json.loads(reply))))
        connection.close()
        return results

    def _last_messages(self) -> str:
        return self.log.read_text()[-LOG_END:]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Continue the process inside, and stop it at the end."""
        self.process.send_signal(signal.SIGCONT)
        yield
        self.process.send_signal(signal.SIGSTOP)

    def load(self, texts: list[str], clients: int) -> tuple[float, list[tuple[float, str]]]:
        """Send all texts from several clients; return the seconds and the results of `send`, client by client."""
        with self.turn(), ThreadPoolExecutor(clients) as threads:
            list(threads.map(self.send, [texts[:1]] * clients))
            start = time.perf_counter()
            results = list(threads.map(self.send, [texts[client::clients] for client in range(clients)]))
            seconds = time.perf_counter() - start
        return seconds, [result for client_results in results for result in client_results]

    def close(self) -> None:
        """End the process, stopped or not."""
        self.process.kill()
        self.process.wait()


class ProjectServer(Server):
    """Server of predict.py."""

    def body(self, text: str) -> dict[str, Any]:
        """Return a request of one record."""
        return {"records": [{"text_a": text}]}

    def label(self, reply: dict[str, Any]) -> str:
        """Return the label of the record."""
        return reply["answers"][0]["label"]


def start_servers(config: ServerConfig, folder: Path, stack: ExitStack) -> list[Server]:
    """Start all servers; the stack ends them."""
    model, peer_model = write_random_models(
        PRESETS[config.albert_network], "classification", config.spm_model_file, LENGTH, folder
    )
    project_words = ["predict", "--model", str(model), "--compute_type", config.compute_type]
    project_words += ["--serve", "127.0.0.1:0", "--device_target", "CPU"]
    peer_words = ["benchmarks.transformers_server", "--model", str(peer_model)]
    servers = []
    for server_class, name, words in (
        (ProjectServer, PROJECT, project_words),
        (Server, "transformers, a thread each", peer_words),
        (Server, "transformers, one at a time", [*peer_words, "--at_once", "1"]),
    ):
        servers.append(stack.enter_context(closing(server_class(name, words, folder / f"{name}.log"))))
    return servers


def compare(config: ServerConfig, folder: Path) -> dict[str, Any]:
    """Return the figures of all sides."""
    table = read_table(Path(config.text))
    texts = [text for _, (text,) in islice(table.select(["sentence"]), config.requests)]
    with ExitStack() as stack:
        servers = start_servers(config, folder, stack)
        figures: dict[str, dict[str, list[float]]] = {}
        for server in servers:
            figures[server.name] = {"requests_per_second": [], "p50": [], "p99": []}
            server.load(texts, config.clients)  # compilation and caches
        for _ in range(config.rounds):
            labels = []
            for server in servers:
                seconds, results = server.load(texts, config.clients)
                latencies = [latency for latency, _ in results]
                figures[server.name]["requests_per_second"].append(len(texts) / seconds)
                figures[server.name]["p50"].append(float(np.quantile(latencies, 0.5)))
                figures[server.name]["p99"].append(float(np.quantile(latencies, 0.99)))
                labels.append([label for _, label in results])
    agreement = np.mean([len(set(answers)) == 1 for answers in zip(*labels, strict=True)])
    return {"sides": figures, "agreement": float(agreement)}


def report(figures: dict[str, Any]) -> str:
    """Return the figures as lines."""
    lines = []
    rates = []
    for name, side in figures["sides"].items():
        rate = median(side["requests_per_second"])
        rates.append(rate)
        latencies = f"latency p50 {median(side['p50']):.3f} s, p99 {median(side['p99']):.3f} s"
        lines.append(f"{name}: {rate:.1f} requests/s, {latencies}")
    ratio = rates[0] / max(rates[1:])
    agreement = f"{figures['agreement']:.1%} of the labels are the same"
    lines.append(f"{ratio:.3f} times as many as the faster of the others; {agreement}")
    return "\n".join(lines)


def main(config: ServerConfig) -> None:
    """Measure, print, write."""
    measure_in_turns(config, compare, report)


if __name__ == "__main__":
    run_main(main, ServerConfig)
