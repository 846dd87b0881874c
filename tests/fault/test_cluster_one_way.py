"""Cuts of one direction, by proxies: bytes are held, on connections that stay (exam cluster)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault.cluster_cuts import CUTS, examine_cut
from fault.cluster_exam import BROKERS, SETTINGS

from kbroker.testing import Cluster

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")  # its logs are wanted after a failure
    with Cluster(BROKERS, SETTINGS, cuttable=True, directory=directory) as running:
        yield running


@pytest.mark.parametrize("name", CUTS)
def test_every_partition_is_written_to_while_one_direction_is_cut(
    name: str, cluster: Cluster, seed: int, scale: int
) -> None:
    examine_cut(cluster, name, scale, seed)
