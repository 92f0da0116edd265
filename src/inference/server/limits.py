"""Limits of a server: sizes and counts bound its work, seconds the time that clients may wait."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes, counts and times of a server."""

    body: int = 1 << 20  # bytes per request
    records: int = 64  # per request
    characters: int = 20_000  # per text
    connections: int = 500  # open at a time; then 503
    waiting: int = 256  # records in the queue; then 503
    batch: int = 32  # records per call of the predictor
    batch_characters: int = 40_000  # of the texts of a call, unless a single record has more
    window: float = 0.005  # seconds that a request waits for others to share its call
    answer_time: float = 60  # seconds for the model's answer; then 503
    graceful_timeout: int = 10  # seconds for running requests after SIGTERM or Ctrl-C
