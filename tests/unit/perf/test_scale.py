"""The command of the cells at full size: options, verdicts, and machines that are too small."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kbroker.client.batches.record_arrays import Fields
from perf import machine, runner, scale
from perf.bars import Bar
from perf.machine import MachineTooSmall, Needs
from perf.site_load import NUMBER_BYTES, Plan, Reader

pytestmark = pytest.mark.unit


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The cell ``site`` measures what is in this."""
    found: dict[str, Any] = {"kbroker": {"restart_s": 20.0}}

    def measure(size: Any, place: Path, overrides: dict[str, str]) -> Any:
        if isinstance(found["kbroker"], Exception):
            raise found["kbroker"]
        return found

    site = scale.CELLS["site"]
    cell = replace(site.cell, measure=measure, bars=(Bar("restart_s", "<= 15", "restart, s"),))
    monkeypatch.setitem(scale.CELLS, "site", replace(site, cell=cell))
    return found


def test_options_change_the_size() -> None:
    _, size = scale.parse_arguments(["site", "--brokers", "5", "--load-s", "1.5"])

    assert (size.brokers, size.load_s, size.partitions) == (5, 1.5, 15_500)


def test_missed_condition_is_said_and_kept(
    measured: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "result.json"

    assert scale.main(["site", "--small", "--output", str(output)]) == 1

    assert "MISSED" in capsys.readouterr().out
    written = json.loads(output.read_text())
    assert written["cells"]["site"]["conditions"][0]["met"] is False
    assert written["size"]["brokers"] == 3


def test_small_size_writes_no_result(
    measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    measured["kbroker"]["restart_s"] = 3.0

    assert scale.main(["site", "--small"]) == 0

    assert list(tmp_path.iterdir()) == []


def test_machine_that_is_too_small_gets_one_line_and_no_result(
    measured: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    measured["kbroker"] = MachineTooSmall("1.0 GiB of memory, 4.0 are needed")

    assert scale.main(["site"]) == 2

    assert capsys.readouterr().err == (
        "perf/scale.py: this machine is too small for site: 1.0 GiB of memory, 4.0 are needed\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_everything_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 1 << 30)
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (1024, 4096))
    ports = tmp_path / "ports"
    ports.write_text("32768\t33768\n")
    monkeypatch.setattr(machine, "LOCAL_PORTS", ports)
    needs = Needs(memory_bytes=4 << 30, descriptors=5000, ports=2000, place=tmp_path)

    with pytest.raises(MachineTooSmall) as raised:
        needs.require()

    assert str(raised.value) == (
        "1.0 GiB of memory, 4.0 are needed; 4096 descriptors for a process, 5000 are needed "
        f"(ulimit -n); 1000 local ports, 2000 are needed ({ports})"
    )


def test_data_in_memory_count_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 4 << 30)
    shared = Path("/dev/shm")

    Needs(memory_bytes=2 << 30, place=shared, place_bytes=1 << 30).require()
    with pytest.raises(MachineTooSmall, match=r"4\.0 GiB of memory, 5\.0 are needed"):
        Needs(memory_bytes=4 << 30, place=shared, place_bytes=1 << 30).require()


def test_enough_descriptors_are_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (1024, 100_000))
    monkeypatch.setattr(machine.resource, "setrlimit", lambda _, limit: limits.append(limit))

    Needs(descriptors=5000, place=tmp_path).require()

    assert limits == [(5000, 100_000)]


def values(numbers: list[int]) -> Fields:
    return Fields.of(np.array([n], ">i8").tobytes() + b"rest" for n in numbers)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.setattr("perf.site_load.threading.Thread", lambda **_: Quiet())
    return Reader(Plan("nowhere:1", ["t"], [2]))


class Quiet:
    def start(self) -> None:
        """Nothing listens and nothing is told."""


def test_reader_finds_each_record_in_its_place(reader: Reader) -> None:
    reader._take(0, 1, values([0, 1, 2]))
    reader._take(0, 1, values([3]))

    assert (reader.problems, reader.counts, reader.records) == ([], [[0, 4]], 4)
    assert NUMBER_BYTES == 8


@pytest.mark.parametrize("wrong", [[1], [0, 0], [0, 2], [1, 0]])
def test_reader_names_what_is_lost_doubled_or_out_of_order(
    reader: Reader, wrong: list[int]
) -> None:
    reader._take(0, 0, values(wrong))

    assert len(reader.problems) == 1
    assert reader.problems[0].startswith("t-0: ")


def test_partitions_are_shared_by_writers() -> None:
    plan = Plan("nowhere:1", ["a", "b"], [3, 2])
    halves = [replace(plan, first=n, step=2).places() for n in (0, 1)]

    assert sorted(halves[0] + halves[1]) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
