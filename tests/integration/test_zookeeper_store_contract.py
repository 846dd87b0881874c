"""The contract of every store, kept by ZooKeeper: the tests of ``controller.store_contract``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from support.brokers.zookeeper import ZooKeeperServer
from support.brokers.zookeeper_bench import ZooKeeperBench

# pytest collects them as tests of this module, with its own ``bench``.
from support.controller.store_contract import *  # noqa: F403

pytestmark = pytest.mark.integration

_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(params=["window-10", "window-1"])
def bench(
    request: pytest.FixtureRequest, server: ZooKeeperServer, tmp_path: Path
) -> Iterator[ZooKeeperBench]:
    window = request.param.partition("-")[2]
    made = ZooKeeperBench(
        f"{server.connect}/of/test-{next(_numbers)}",
        tmp_path,
        zookeeper_max_in_flight_requests=window,
    )
    yield made
    made.close()
