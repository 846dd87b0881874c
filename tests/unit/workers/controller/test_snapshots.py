"""Images that the controller process gives to the processes of its broker when they start."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.workers.controller.serving import Snapshots

pytestmark = pytest.mark.unit

IO = Address(ProcessKind.IO_WORKER, 0)
SECOND_IO = Address(ProcessKind.IO_WORKER, 1)
NETWORK = Address(ProcessKind.NETWORK, 0)


class FakeImage:
    """made: for whom snapshots were made."""

    def __init__(self) -> None:
        self.version = 1
        self.made: list[bool] = []

    def snapshot(self, for_io_worker: bool, *, with_topics: bool = True) -> dict[str, Any]:
        if not with_topics:
            return {"version": self.version}
        self.made.append(for_io_worker)
        return {"version": self.version, "for_io_worker": for_io_worker}


def test_processes_that_start_together_share_a_snapshot_of_each_kind() -> None:
    image: Any = FakeImage()
    later: Pending[None] = Pending()
    rpc: Any = SimpleNamespace(sleep=lambda _: later)
    snapshots = Snapshots(image, rpc)

    for address, for_io_worker in ((IO, True), (NETWORK, False), (SECOND_IO, True)):
        snapshot = json.loads(snapshots.of(address))
        assert snapshot == {"version": 1, "for_io_worker": for_io_worker}
    acceptor = Address(ProcessKind.ACCEPTOR, 0)
    assert json.loads(snapshots.of(acceptor)) == {"version": 1}
    assert image.made == [True, False]

    image.version = 2
    assert json.loads(snapshots.of(IO))["version"] == 2
    later.resolve()  # none is kept for long
    snapshots.of(IO)
    assert image.made == [True, False, True, True]
