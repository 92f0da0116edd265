"""Requests a second of predict.py --serve and of transformers behind FastAPI: python -m benchmarks.server --help.

Clients in threads of this process send single sentences, each its next one when it has the answer. All servers run,
with the same weights, which are random; those whose turn it is not are stopped. transformers has two: one computes
requests as they come, in a thread each, the other one after the other.
"""

import http.client
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.commands import end_with_parent, measure_in_turns
from benchmarks.random_model import random_models
from model_utils.config import run_main
from model_utils.errors import UserError
from model_utils.schema import Config, option
from src.albert_config import PRESETS
from src.inference.deploy_config import ANSWERS_IN
from src.text.text_tables import read_table

logger = logging.getLogger(__name__)
LENGTH = 128  # tokens of a sentence at most
OUR_WORDS = "--serve", "127.0.0.1:0", "--device_target", "CPU"
PATIENCE = 300  # s that an answer may take
LOG_END = 1000  # characters of a server's messages, where it fails


class ServerConfig(Config):
    """Time servers under load: python -m benchmarks.server."""

    albert_network: str = option("albert_base", "preset of sizes", choices=tuple(PRESETS))
    text: str = option("", "a table with a column sentence (GLUE's SST-2)", required=True)
    spm_model_file: str = option("", "vocabulary", required=True)
    clients: int = option(16, "that wait for an answer at any time", minimum=1)
    requests: int = option(320, "of a turn, after as many as there are clients", minimum=1)
    compute_type: str = option("float32", "of this project; the others compute in float32", choices=ANSWERS_IN)
    rounds: int = option(7, "turns of each side", minimum=1)
    output: str = option("", "JSON file for the figures; empty: none")


class Server:
    """A process that prints its address and answers POST /predict.

    Args:
        words: its command, behind `python -m`. log: for its stderr.

    Raises:
        UserError: it ends before it has printed an address, or answers with another status than 200.
    """

    def __init__(self, name: str, words: list[str], log: Path) -> None:
        self.name, self.log = name, log
        with log.open("w") as messages:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                preexec_fn=partial(end_with_parent, signal.SIGKILL),  # also where it is stopped
                env=dict(os.environ),  # as in run_command
            )
        for line in self.process.stdout:
            if address := re.search(r"http://([\d.]+):(\d+)/", line):
                self.address = address[1], int(address[2])
                return
        raise UserError(f"the server of {name} does not start: {self._last_messages()}")

    def body(self, text: str) -> dict[str, Any]:
        """A request."""
        return {"text": text}

    def label(self, reply: dict[str, Any]) -> str:
        """What is answered."""
        return reply["label"]

    def send(self, texts: list[str]) -> list[tuple[float, str]]:
        """Latency in seconds and label of each text, sent one after the other over one connection."""
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE)
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
        """The process runs inside, and stands still after it."""
        self.process.send_signal(signal.SIGCONT)
        yield
        self.process.send_signal(signal.SIGSTOP)

    def load(self, texts: list[str], clients: int) -> tuple[float, list[tuple[float, str]]]:
        """Seconds for all texts from so many clients, and what `send` gives for each, in the order of clients."""
        with self.turn(), ThreadPoolExecutor(clients) as threads:
            list(threads.map(self.send, [texts[:1]] * clients))
            start = time.perf_counter()
            results = list(threads.map(self.send, [texts[client::clients] for client in range(clients)]))
            return time.perf_counter() - start, [each for part in results for each in part]

    def close(self) -> None:
        """End the process, stopped or not."""
        self.process.kill()
        self.process.wait()


class OurServer(Server):
    """predict.py's."""

    def body(self, text: str) -> dict[str, Any]:
        """A request of one record."""
        return {"records": [{"text_a": text}]}

    def label(self, reply: dict[str, Any]) -> str:
        """That of the record."""
        return reply["answers"][0]["label"]


def compare(config: ServerConfig, folder: Path) -> dict[str, Any]:
    """The figures of all sides."""
    ours, theirs = random_models(
        PRESETS[config.albert_network], "classification", config.spm_model_file, LENGTH, folder
    )
    table = read_table(Path(config.text))
    texts = [row[table.place("sentence")] for _, row in islice(table.rows, config.requests)]
    words = ["predict", "--model", str(ours), "--compute_type", config.compute_type, *OUR_WORDS]
    peer = ["benchmarks.transformers_server", "--model", str(theirs)]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(closing(make(name, words, folder / f"{name}.log")))
            for make, name, words in (
                (OurServer, "this project", words),
                (Server, "transformers, a thread each", peer),
                (Server, "transformers, one at a time", [*peer, "--at_once", "1"]),
            )
        ]
        figures: dict[str, dict[str, list[float]]] = {
            each.name: {"requests_per_second": [], "p50": [], "p99": []} for each in servers
        }
        for server in servers:  # compilations, and what a library does when it is first called
            server.load(texts, config.clients)
        for _ in range(config.rounds):
            labels = []
            for server in servers:
                seconds, results = server.load(texts, config.clients)
                latencies = [latency for latency, _ in results]
                figures[server.name]["requests_per_second"].append(len(texts) / seconds)
                for name, quantile in (("p50", 0.5), ("p99", 0.99)):
                    figures[server.name][name].append(float(np.quantile(latencies, quantile)))
                labels.append([label for _, label in results])
    return {
        "sides": figures,
        "agreement": float(np.mean([len(set(each)) == 1 for each in zip(*labels, strict=True)])),
    }


def report(figures: dict[str, Any]) -> str:
    """The figures as lines."""
    lines = [
        f"{name}: {median(each['requests_per_second']):.1f} requests/s, latency p50 {median(each['p50']):.3f} s, "
        f"p99 {median(each['p99']):.3f} s"
        for name, each in figures["sides"].items()
    ]
    ours, *theirs = (median(each["requests_per_second"]) for each in figures["sides"].values())
    agreement = f"{figures['agreement']:.1%} of the labels are the same"
    return "\n".join([*lines, f"{ours / max(theirs):.3f} times as many as the faster of the others; {agreement}"])


def main(config: ServerConfig) -> None:
    """Measure, print, write."""
    measure_in_turns(config, compare, report)


if __name__ == "__main__":
    run_main(main, ServerConfig)
