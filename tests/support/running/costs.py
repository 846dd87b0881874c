"""What tests cost: CPU seconds of each test with all processes that it started.

    PYTHONPATH=tests KBROKER_TEST_COSTS=/tmp/costs make test ARGS='-p support.running.costs'
    python tests/support/running/costs.py /tmp/costs

Each test process appends its rows to the file; the second command sums them up by folder, and
names the files that cost most. The kernel counts for each test process, in a control group of its
own: this needs root. Compare runs on a machine that does nothing else: on a busy one, CPU seconds
become more, too.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

COLLECTION = "(collection)"
FILES_SHOWN = 60


class ControlGroup:
    """That of this process and of all that it starts, also when their parents have ended."""

    IS_V1 = Path("/sys/fs/cgroup/cpuacct").is_dir()
    ROOT = Path("/sys/fs/cgroup/cpuacct" if IS_V1 else "/sys/fs/cgroup")
    PREFIX = "kbroker-tests-"

    def __init__(self) -> None:
        self._path = self.ROOT / f"{self.PREFIX}{os.getpid()}"
        self._usage = self._path / ("cpuacct.usage" if self.IS_V1 else "cpu.stat")
        self._unit = 1e9 if self.IS_V1 else 1e6
        self._path.mkdir(exist_ok=True)
        (self._path / "cgroup.procs").write_text(str(os.getpid()))

    def cpu_seconds(self) -> float:
        """CPU time since the group was made."""
        words = self._usage.read_text().split()  # v1: ns; v2: "usage_usec", us, and more
        return int(words[-1] if len(words) == 1 else words[1]) / self._unit

    @classmethod
    def remove_unused(cls) -> None:
        """Those of runs that have ended: the kernel keeps what has processes."""
        for path in cls.ROOT.glob(f"{cls.PREFIX}*"):
            with suppress(OSError):
                path.rmdir()


class Costs:
    """The plugin: a row is [file of the test, name of the test, CPU seconds, started brokers]."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pid = os.getpid()
        self._group = ControlGroup()
        self._before = 0.0
        self._starts = 0

    def pytest_collection_finish(self) -> None:
        self._count_starts()
        self._write(COLLECTION, COLLECTION)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """With setup and teardown: a fixture that tests share is the cost of the first."""
        if os.getpid() != self._pid:  # a fork of the process that has collected
            self._pid, self._group, self._before = os.getpid(), ControlGroup(), 0.0
        try:
            return (yield)
        finally:
            file, _, name = item.nodeid.partition("::")
            self._write(file, name)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._write(COLLECTION, "(the end)")

    def _write(self, file: str, name: str) -> None:
        now = self._group.cpu_seconds()
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
    if path and not hasattr(config, "workerinput"):
        ControlGroup.remove_unused()
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
