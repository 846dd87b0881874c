"""The contract of every store, kept by the embedded and the simulated one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# pytest collects them as tests of this module, with its own ``bench``.
from support.controller.store_contract import *  # noqa: F403
from support.controller.store_contract import Bench

from kbroker.ipc.pending import Pending
from kbroker.metastore.embedded import EmbeddedStore
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.simulated import SimulatedEnsemble

pytestmark = pytest.mark.unit


class EmbeddedBench(Bench):
    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self.store = EmbeddedStore(NodeFile(self._directory))

    def next_session(self) -> None:
        self.wait(self.store.close())
        self.store = EmbeddedStore(NodeFile(self._directory))


class SimulatedBench(Bench):
    def __init__(self, seed: int) -> None:
        self._ensemble = SimulatedEnsemble(seed)
        self._connect()

    def _connect(self) -> None:
        self.store = self._ensemble.connect()
        self._ensemble.run_until(lambda: self.store.session_id > 0)

    def settle(self, pending: Pending[Any]) -> None:
        self._ensemble.run_until(lambda: pending.done)

    def next_session(self) -> None:
        self.wait(self.store.close())
        self._connect()


@pytest.fixture(params=["embedded", "simulated-1", "simulated-2"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    kind, _, seed = request.param.partition("-")
    bench = EmbeddedBench(tmp_path) if kind == "embedded" else SimulatedBench(int(seed))
    yield bench
    bench.wait(bench.store.close())
