"""What one server takes on: sizes and numbers bound the work, seconds the time that others are kept waiting."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What the server takes, and how long it waits."""

    body: int = 1 << 20  # bytes of a request
    records: int = 64  # of a request
    characters: int = 20_000  # of each text
    waiting: int = 256  # records in the queue; then 503
    batch: int = 32  # records of one call of the predictor
    batch_characters: int = 40_000  # of their texts, unless one record has more
    window: float = 0.005  # seconds that a request waits for others to share a call with
    headers_time: float = 10  # seconds from connecting, or from the last answer, until a request's headers are there
    body_time: float = 30  # seconds for the body behind them, and for taking the answer
    answer_time: float = 60  # seconds until the model has answered; then 503
    graceful_timeout: int = 10  # seconds that running requests have after SIGTERM or Ctrl-C
