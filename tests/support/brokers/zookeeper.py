"""The ZooKeeper of ``kbroker.testing``; tests are skipped if it cannot be started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kbroker.testing import zookeeper
from kbroker.testing.zookeeper import TICK_MS, ZooKeeperMissing

__all__ = ["TICK_MS", "ZooKeeperServer", "skip_without_zookeeper"]


def skip_without_zookeeper() -> None:
    """Call it before anything that needs ZooKeeper."""
    try:
        zookeeper.jars()
    except ZooKeeperMissing as error:
        pytest.skip(str(error))


class ZooKeeperServer(zookeeper.ZooKeeperServer):
    def __init__(
        self, home: Path, settings: Mapping[str, str] = {}, jvm: tuple[str, ...] = ()
    ) -> None:
        skip_without_zookeeper()
        super().__init__(home, settings, jvm)
