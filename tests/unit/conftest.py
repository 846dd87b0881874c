"""Fixtures of the unit tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """pytest's caplog, without messages of other libraries, whose threads outlive a test."""

    def is_ours(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] == "kbroker"

    caplog.handler.addFilter(is_ours)
    yield caplog
    caplog.handler.removeFilter(is_ours)
