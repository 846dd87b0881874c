"""What a terminal shows while a commit is loaded."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from support.spark.load_source import MadeUp

from kbroker.spark.direct import InlineRunner
from kbroker.spark.load.directory import Directory
from kbroker.spark.load.engine import Load, LoadSettings
from kbroker.spark.load.progress import TaskLine, on_terminal

pytestmark = pytest.mark.unit


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_line_says_how_far_it_is_and_goes_at_the_end() -> None:
    screen, times = Terminal(), iter([5.0, 12.4, 47.0])
    line = TaskLine(screen, lambda: next(times))

    line(0, 12)
    line(3, 12)
    line(12, 12)
    line(0, 0)
    line(0, 0)

    shown = screen.getvalue().split("\r\x1b[K")
    assert shown == [
        "",
        "0 of 12 tasks (0 %), 0 s",
        "3 of 12 tasks (25 %), 7 s",
        "12 of 12 tasks (100 %), 42 s",
        "",
    ]


def test_line_is_for_terminals_and_not_for_quiet_ones() -> None:
    assert on_terminal(quiet=False, stream=io.StringIO()) is None
    assert on_terminal(quiet=True, stream=Terminal()) is None
    assert isinstance(on_terminal(quiet=False, stream=Terminal()), TaskLine)


def test_tasks_of_a_load_are_counted_and_the_line_is_gone_before_the_commit_is_told(
    tmp_path: Path,
) -> None:
    calls: list[object] = []
    runner = InlineRunner(lambda done, count: calls.append((done, count)))
    destination = Directory(tmp_path)
    destination.prepare()
    source = MadeUp.of({"a": [500, 500, 500]})
    settings = LoadSettings(load="test", by_partition=True)

    Load(source, destination, runner, settings, report=calls.append).catch_up()

    assert calls[:4] == [(0, 3), (1, 3), (2, 3), (0, 0)]
    assert len(calls) == 5


def test_task_that_fails_leaves_no_line() -> None:
    calls: list[tuple[int, int]] = []
    runner = InlineRunner(lambda done, count: calls.append((done, count)))

    with pytest.raises(ZeroDivisionError):
        runner.run([[1], [0]], lambda task, _: [{"x": 1 // one} for one in task], "")

    assert calls == [(0, 2), (1, 2), (0, 0)]
