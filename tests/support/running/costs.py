"""What tests cost: CPU seconds of each test with all processes that it started.

    PYTHONPATH=tests KBROKER_TEST_COSTS=/tmp/costs make test ARGS='-p support.running.costs'
    python tests/support/running/costs.py /tmp/costs

Each test process appends its rows to the file; the second command sums them up by folder, and
names the files that cost most. Compare runs on a machine that does nothing else: on a busy one, CPU
seconds become more, too.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
# In /proc/<pid>/stat, after the name: utime, stime and those of children that have been waited for.
TIMES = slice(11, 15)
COLLECTION = "(collection)"
FILES_SHOWN = 60


def cpu_seconds(pid: int) -> float:
    """Of a process, its descendants, and those of them that have ended and been waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        children = [
            int(child)
            for task in os.listdir(f"/proc/{pid}/task")
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        ]
    except OSError:  # it has ended
        return 0.0
    own = sum(map(int, stat.rpartition(")")[2].split()[TIMES])) / TICKS
    return own + sum(map(cpu_seconds, children))


class Costs:
    """The plugin: a row is [file of the test, name of the test, CPU seconds, started brokers]."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = 0.0
        self._pid = os.getpid()
        self._starts = 0

    def pytest_collection_finish(self) -> None:
        self._count_starts()
        self._write(COLLECTION, COLLECTION)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """With setup and teardown: a fixture that tests share is the cost of the first."""
        try:
            return (yield)
        finally:
            file, _, name = item.nodeid.partition("::")
            self._write(file, name)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._write(COLLECTION, "(the end)")

    def _write(self, file: str, name: str) -> None:
        now = cpu_seconds(os.getpid())
        if os.getpid() != self._pid:  # a fork of the process that has collected
            self._pid, self._before = os.getpid(), 0.0
        row = [file, name, round(now - self._before, 2), self._starts]
        self._before, self._starts = now, 0
        with self._path.open("a") as rows:
            rows.write(json.dumps(row) + "\n")

    def _count_starts(self) -> None:
        from kbroker.testing.broker import Broker

        start = Broker.start

        def counted(broker: Broker) -> Broker:
            self._starts += 1
            return start(broker)

        Broker.start = counted  # type: ignore[method-assign, assignment]


def pytest_configure(config: pytest.Config) -> None:
    """In each process that runs tests; that is not the one that distributes them."""
    path = os.environ.get("KBROKER_TEST_COSTS")
    is_worker = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if path and is_worker:
        config.pluginmanager.register(Costs(Path(path)))


def table(rows: Iterable[tuple[str, str, float, int]]) -> str:
    """CPU seconds, tests and starts of brokers: by folder, and of the files that cost most."""
    folders, files = defaultdict[str, float](float), defaultdict[str, float](float)
    starts, tests = Counter[str](), Counter[str]()
    for file, _, seconds, started in rows:
        folder = "/".join(file.split("/")[:2])
        for key in {folder, file}:
            starts[key] += started
            tests[key] += 1
        folders[folder] += seconds
        files[file] += seconds
    shown = [*_most(folders), ("all", sum(folders.values())), *_most(files)[:FILES_SHOWN]]
    lines = [f"{'CPU s':>8} {'tests':>6} {'starts':>6}"]
    lines += [f"{took:8.1f} {tests[key]:6} {starts[key]:6}  {key}" for key, took in shown]
    return "\n".join(lines)


def _most(sums: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(sums.items(), key=lambda row: -row[1])


if __name__ == "__main__":
    print(table(json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()))
