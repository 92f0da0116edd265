"""Messages that were logged."""

import pytest


def messages_of(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    """Messages that begin so."""
    return [message for record in caplog.records if (message := record.getMessage()).startswith(start)]
