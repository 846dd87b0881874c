"""What the load on coordinators is like."""

import pytest

pytest.importorskip("confluent_kafka")

from kbroker.coordinator.partitioner import coordinator_partition
from perf.coordination import transactional_id_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("topic", ["transactions-1", "transactions-2", "transactions-3f", "t"])
def test_half_of_the_transactions_are_coordinated_by_the_io_worker_of_their_partition(topic):
    """Runs would differ by how many are, and could not be compared."""
    parities = [
        (coordinator_partition(transactional_id_of(topic, number), 50) - number) % 2
        for number in range(8)
    ]

    assert sorted(parities) == [0] * 4 + [1] * 4
    # Of each kind, as many write to one io worker as to the other.
    assert sum(parity for number, parity in enumerate(parities) if number % 2) == 2
