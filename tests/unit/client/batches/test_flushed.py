"""What the end of a block does with records that are not acknowledged."""

from __future__ import annotations

import pytest

from kbroker.client.batches.flushed import FlushedAtEnd

pytestmark = pytest.mark.unit


class Recorder(FlushedAtEnd):
    def __init__(self, fails: bool = False) -> None:
        self.calls: list[str] = []
        self._fails = fails

    def flush(self) -> None:
        self.calls.append("flush")
        if self._fails:
            raise TimeoutError

    def close(self) -> None:
        self.calls.append("close")


def test_end_of_a_block_flushes_and_closes() -> None:
    with Recorder() as producer:
        assert producer.calls == []
    assert producer.calls == ["flush", "close"]


def test_error_in_a_block_abandons_what_is_left() -> None:
    producer = Recorder()
    with pytest.raises(KeyError), producer:
        raise KeyError
    assert producer.calls == ["close"]


def test_error_while_flushing_is_raised_after_the_close() -> None:
    producer = Recorder(fails=True)
    with pytest.raises(TimeoutError), producer:
        pass
    assert producer.calls == ["flush", "close"]
