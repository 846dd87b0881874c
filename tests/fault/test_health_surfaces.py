"""What is wrong shows on every surface, and goes from all of them: the real faults.

Full disk, failing disk, a stopped process of each kind, a killed broker of three. Nothing that
speaks of the thing stays green. The seconds are printed (``-s``), as the Markdown of
docs/health.md, with the load of the machine. None are asserted: a busy machine would fail.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from fault.cluster_load import create_replicated
from fault.disks import MIB, failing_disk, fill_up, small_disk
from fault.health_surfaces import Surface, Watch, of_broker, of_cluster, watching
from support.brokers.zookeeper import skip_without_zookeeper
from support.clients.wire_client import WireClient
from support.faults.load import TOPIC

from kbroker.health.broker import STALLED_MS
from kbroker.record.builder import BatchBuilder
from kbroker.testing import Broker, Cluster, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(900)]

TURN_S = 60.0
SETTINGS = {"log.segment.bytes": MIB, "log.index.size.max.bytes": 4096}
# What a stopped process that is not the exporter leaves green: whoever restarts on it waits.
NOT_STUCK = {"/livez"}
KINDS = ("controller-0", "io-0", "network-0", "acceptor-0", "cleaner-0", "exporter-0", "supervisor")
STALLED_S = STALLED_MS / 1000


class Table:
    """Seconds until red and until green again, by fault and surface."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, tuple[float | None, float | None]]] = {}

    def note(
        self, fault: str, red: Mapping[str, float | None], green: Mapping[str, float | None]
    ) -> None:
        """green: without a surface that only a restart makes green again."""
        self._rows[fault] = {name: (red[name], green.get(name)) for name in red}

    def markdown(self) -> str:
        surfaces = list(dict.fromkeys(name for row in self._rows.values() for name in row))
        titles = " | ".join(f"`{name}`" for name in surfaces)
        lines = [f"| fault | {titles} |", "| --- " * (len(surfaces) + 1) + "|"]
        for fault, row in self._rows.items():
            cells = [_cell(*row.get(name, (None, None))) for name in surfaces]
            lines.append(f"| {fault} |" + "".join(f" {cell} |" if cell else " |" for cell in cells))
        return "\n".join(lines)


def _cell(red: float | None, green: float | None) -> str:
    """Empty: it stayed green."""
    if red is None:
        return ""
    return f"{red:.1f}" if green is None else f"{red:.1f} / {green:.1f}"


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[Table]:
    """Printed at the end."""
    made = Table()
    loads = [os.getloadavg()[0]]
    yield made
    loads.append(os.getloadavg()[0])
    load = " to ".join(f"{one:.0f}" for one in loads)
    print(f"\n{made.markdown()}\n\n{os.cpu_count()} cores, load {load}")


def examine(
    table: Table,
    fault: str,
    surfaces: Mapping[str, Surface],
    begin: Callable[[], object],
    end: Callable[[], object],
    expected: set[str],
) -> dict[str, Watch]:
    """expected: the surfaces that must turn red. All others stay green, and all are green again."""
    with watching(surfaces) as watches:
        wait_until(lambda: all(one.looks for one in watches.values()), TURN_S, "all were looked at")
        wait_until(lambda: not any(one.is_red for one in watches.values()), TURN_S, "all are green")
        begin()
        began = time.monotonic()
        wait_until(
            lambda: all(watches[name].is_red for name in expected), TURN_S, f"{fault}: all are red"
        )
        red = {name: watches[name].seconds_until(True, began) for name in surfaces}
        end()
        ended = time.monotonic()
        wait_until(
            lambda: not any(one.is_red for one in watches.values()), TURN_S, f"{fault}: green again"
        )
        green = {name: watches[name].seconds_until(False, ended) for name in expected}
    table.note(fault, {name: red[name] for name in surfaces if name in expected}, green)
    # On a machine so busy that all are red no sooner, a process is stalled by then.
    others = {
        name
        for name in watches
        if name not in expected and (seconds := red[name]) is not None and seconds < STALLED_S
    }
    assert not others, f"{fault}: red, although it is well: {others}"
    return watches


def go_on(pid: int) -> None:
    """Unless the supervisor has aborted it meanwhile."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as started:
        yield started


@pytest.mark.parametrize("process", KINDS)
def test_stopped_process_is_stuck_everywhere(broker: Broker, table: Table, process: str) -> None:
    pid = broker.pid if process == "supervisor" else broker.pids[process]
    surfaces = of_broker(broker)
    expected = surfaces.keys() - NOT_STUCK
    if process == "exporter-0":
        expected = set(surfaces)  # nobody answers
    examine(
        table,
        f"{process} stopped",
        surfaces,
        lambda: os.kill(pid, signal.SIGSTOP),
        lambda: go_on(pid),
        set(expected),
    )


def test_full_disk_is_told_and_forgotten(tmp_path: Path, table: Table) -> None:
    with (
        small_disk(tmp_path / "disk", 64 * MIB) as disk,
        Broker(SETTINGS, log_dirs=disk / "data") as broker,
        WireClient((broker.host, broker.port)) as client,
    ):
        client.create_topic("t", 1)
        filler: list[Path] = []
        surfaces = of_broker(broker) | of_cluster([broker])
        del surfaces["status"], surfaces["health --cluster"], surfaces["/metrics, missing"]

        def begin() -> None:
            filler.append(fill_up(disk))
            batch = BatchBuilder(0)
            batch.append(b"x" * 100_000, b"k", 1_700_000_000_000, ())
            assert client.produce("t", {0: batch.build()})[0].error_code

        examine(
            table,
            "full disk",
            surfaces,
            begin,
            lambda: filler[0].unlink(),
            surfaces.keys() - {"/livez", "/readyz"},
        )


def test_failing_disk_is_told(tmp_path: Path, table: Table) -> None:
    """One of two: the broker goes on with the other. It is well again after a restart."""
    with (
        failing_disk(tmp_path / "disk") as disk,
        Broker(SETTINGS, log_dirs=f"{tmp_path / 'other'},{disk.path / 'data'}") as broker,
        WireClient((broker.host, broker.port)) as client,
    ):
        client.create_topic("t", 4)
        surfaces = of_broker(broker) | of_cluster([broker])
        for name in ("status", "health --cluster", "/metrics, missing", "doctor", "console"):
            del surfaces[name]

        def begin() -> None:
            disk.fail()
            batch = BatchBuilder(0)
            batch.append(b"x", b"k", 1_700_000_000_000, ())
            for partition in range(4):
                client.produce("t", {partition: batch.build()})

        def end() -> None:
            broker.stop()
            disk.repair()
            broker.start()

        green = {"/livez", "/readyz", "/readyz?for=writes"}
        with watching(surfaces) as watches:
            wait_until(lambda: all(one.looks for one in watches.values()), TURN_S)
            began = time.monotonic()
            begin()
            wait_until(
                lambda: all(watches[name].is_red for name in surfaces.keys() - green), TURN_S
            )
            red = {name: watches[name].seconds_until(True, began) for name in surfaces}
        assert not any(red[name] for name in green)
        end()
        with watching(of_broker(broker)) as watches:
            wait_until(lambda: all(one.looks for one in watches.values()), TURN_S)
            wait_until(lambda: not any(one.is_red for one in watches.values()), TURN_S)
        table.note(
            "disk that fails (EIO), one of two",
            {name: red[name] for name in surfaces if name not in green},
            {},
        )


def test_killed_broker_is_missing_for_the_cluster_only(table: Table) -> None:
    skip_without_zookeeper()
    with Cluster(3) as cluster:
        cluster.wait_ready()
        create_replicated(cluster, 6)
        cluster.wait_in_sync(TOPIC, 3)
        of_all = of_cluster(cluster.brokers)  # any of them may be the controller
        of_neighbour = of_broker(cluster.brokers[1])
        surfaces = of_all | {
            f"{name} of a neighbour": surface for name, surface in of_neighbour.items()
        }
        examine(
            table,
            "killed broker of three",
            surfaces,
            lambda: cluster.kill(2),
            lambda: cluster.restart(2),
            set(of_all),
        )
