"""The ZooKeeper of ``kbroker.testing``; tests are skipped if it cannot be started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest

from kbroker.testing import zookeeper
from kbroker.testing.zookeeper import TICK_MS, ZooKeeperMissing

__all__ = ["TICK_MS", "ZooKeeperServer", "path_of_its_own", "shared", "skip_without_zookeeper"]

_paths = count()


def skip_without_zookeeper() -> None:
    """Call it before anything that needs ZooKeeper."""
    try:
        zookeeper.jars()
    except ZooKeeperMissing as error:
        pytest.skip(str(error))


def shared() -> zookeeper.ZooKeeperServer:
    """The server of this process: for tests that neither end it nor configure it."""
    skip_without_zookeeper()
    return zookeeper.shared()


def path_of_its_own() -> str:
    """In the shared server, for ``zookeeper.connect``; it does not exist yet."""
    return f"{shared().connect}/test-{os.getpid()}-{next(_paths)}"


class ZooKeeperServer(zookeeper.ZooKeeperServer):
    def __init__(
        self, home: Path, settings: Mapping[str, str] = {}, jvm: tuple[str, ...] = ()
    ) -> None:
        skip_without_zookeeper()
        super().__init__(home, settings, jvm)
