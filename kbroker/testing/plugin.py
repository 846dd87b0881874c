"""pytest fixtures, found automatically once kbroker is installed.

``kbroker``
    A broker of its own for the test. Settings come from a marker::

        @pytest.mark.kbroker_config({"log.segment.bytes": 4096}, num_io_threads=1)
        def test_rolls(kbroker): ...

``kbroker_broker``
    One broker for all tests that ask for it, started with the first and stopped at the end of the
    session. Tests that share it use topic names of their own and leave its processes alone.

``kbroker_cluster``
    A cluster of its own for the test: three brokers on a ZooKeeper that all clusters of the session
    share. The arguments of ``kbroker.testing.Cluster`` come from a marker::

        @pytest.mark.kbroker_cluster_config(brokers=2, cuttable=True)
        def test_cut(kbroker_cluster): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker
    from kbroker.testing.cluster import Cluster


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for line in (
        "kbroker_config(settings, **settings): configuration of the kbroker fixture",
        "kbroker_cluster_config(brokers, ...): arguments of the kbroker_cluster fixture",
    ):
        config.addinivalue_line("markers", line)


@pytest.fixture
def kbroker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A started ``kbroker.testing.Broker``, for this test alone."""
    from kbroker.testing.broker import Broker

    marker = request.node.get_closest_marker("kbroker_config")
    arguments = marker.args if marker else ()
    settings = marker.kwargs if marker else {}
    with Broker(*arguments, **settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def kbroker_broker() -> Iterator[Broker]:
    """A started ``kbroker.testing.Broker``, shared by the session."""
    from kbroker.testing.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def kbroker_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A started ``kbroker.testing.Cluster``, for this test alone."""
    from kbroker.testing.cluster import Cluster

    marker = request.node.get_closest_marker("kbroker_cluster_config")
    arguments = marker.args if marker else ()
    settings = marker.kwargs if marker else {}
    with Cluster(*arguments, **settings) as cluster:
        yield cluster
