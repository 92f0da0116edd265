"""Limits of a server: sizes and counts bound its work, seconds the time that clients may take or wait."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes, counts and times of a server."""

    body: int = 1 << 20  # bytes per request
    records: int = 64  # per request
    characters: int = 20_000  # per text
    waiting: int = 256  # records in the queue; then 503
    batch: int = 32  # records per call of the predictor
    batch_characters: int = 40_000  # of the texts of a call, unless a single record has more
    window: float = 0.005  # seconds that a request waits for others to share its call
    headers_time: float = 10  # seconds for a request's headers, from the connection or the last answer
    body_time: float = 30  # seconds for a request's body, and for reading the answer
    answer_time: float = 60  # seconds for the model's answer; then 503
    graceful_timeout: int = 10  # seconds for running requests after SIGTERM or Ctrl-C
