"""The contract of every store, kept by ZooKeeper: the tests of ``controller.store_contract``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.zookeeper import path_of_its_own
from support.brokers.zookeeper_bench import ZooKeeperBench

# pytest collects them as tests of this module, with its own ``bench``.
from support.controller.store_contract import *  # noqa: F403

pytestmark = pytest.mark.integration


@pytest.fixture(params=["window-10", "window-1"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ZooKeeperBench]:
    window = request.param.partition("-")[2]
    place = f"{path_of_its_own()}/below"
    made = ZooKeeperBench(place, tmp_path, zookeeper_max_in_flight_requests=window)
    yield made
    made.close()
