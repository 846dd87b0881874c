"""The Kafka of these tests: one that ends is noticed at once, not when the wait for it is over."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.brokers.kafka_servers import Server

from kbroker.testing import ProcessEnded

pytestmark = pytest.mark.interop


class Ending(Server):
    def command(self) -> list[str]:
        return ["sh", "-c", "echo this is why; exit 1"]


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


def test_server_that_ends_at_start_is_not_waited_for(tmp_path: Path) -> None:
    """``wait_until`` would take an AssertionError for "not yet", and wait for two minutes."""
    with pytest.raises(ProcessEnded, match="this is why"):
        Ending(tmp_path).start()
