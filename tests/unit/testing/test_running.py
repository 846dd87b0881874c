"""Nothing is left running behind a block."""

from __future__ import annotations

from typing import Self

import pytest

from kbroker.testing.running import RunningInBlock

pytestmark = pytest.mark.unit


class Recorder(RunningInBlock):
    def __init__(self, fails: bool = False) -> None:
        self.calls: list[str] = []
        self._fails = fails

    def start(self) -> Self:
        self.calls.append("start")
        if self._fails:
            raise TimeoutError
        return self

    def close(self) -> None:
        self.calls.append("close")


def test_block_is_entered_once_it_runs_and_closes_it_even_after_an_error() -> None:
    running = Recorder()
    with pytest.raises(KeyError), running as entered:
        assert entered is running
        raise KeyError
    assert running.calls == ["start", "close"]


def test_start_that_fails_leaves_nothing_running() -> None:
    running = Recorder(fails=True)
    with pytest.raises(TimeoutError), running:
        raise AssertionError("the block was entered")
    assert running.calls == ["start", "close"]
