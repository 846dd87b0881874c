"""The effect of metadata on a replica: its role, and the epochs of it."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker._ext.shared import partition_table
from kbroker.cluster.image import PartitionImage
from kbroker.replication.partition import Change, Partition, Role

pytestmark = pytest.mark.unit

ME, OTHER = 1, 2
NOTHING = Change(began=False, gained=False, lost=False)


def told(leader: int = ME, epoch: int = 0, **fields: Any) -> PartitionImage:
    given = {"isr": [ME], "replicas": [ME, OTHER], "slot": 3, "slot_incarnation": 1, **fields}
    return PartitionImage(leader=leader, leader_epoch=epoch, **given)


@pytest.fixture
def partition() -> Partition:
    return Partition(ME)


def test_partition_is_nothing_before_it_is_told(partition: Partition) -> None:
    assert (partition.role, partition.leads, partition.is_alone) == (Role.NONE, False, False)


def test_roles_have_the_numbers_of_the_slot() -> None:
    assert [int(role) for role in Role] == [
        partition_table.NO_ROLE,
        partition_table.LEADER,
        partition_table.FOLLOWER,
        partition_table.REPAIRING,
    ]


def test_first_word_of_the_controller_makes_a_leader(partition: Partition) -> None:
    assert partition.take(told()) == Change(began=True, gained=True, lost=False)
    assert (partition.role, partition.leader_epoch) == (Role.LEADER, 0)


def test_replica_that_another_leads_follows(partition: Partition) -> None:
    assert partition.take(told(OTHER, 4)) == NOTHING
    assert (partition.role, partition.leader, partition.leader_epoch) == (Role.FOLLOWER, OTHER, 4)


def test_broker_without_a_replica_is_nothing_to_the_partition(partition: Partition) -> None:
    partition.take(told())
    change = partition.take(told(OTHER, 1, replicas=[OTHER], isr=[OTHER]))

    assert change == Change(began=False, gained=False, lost=True)
    assert partition.role is Role.NONE


def test_lead_that_goes_to_another_is_lost(partition: Partition) -> None:
    partition.take(told(ME, 0))
    assert partition.take(told(OTHER, 1)) == Change(began=False, gained=False, lost=True)
    assert partition.take(told(ME, 2)) == Change(began=True, gained=True, lost=False)


def test_leader_of_a_new_epoch_begins_that_and_continues_leading(partition: Partition) -> None:
    partition.take(told(ME, 0))
    assert partition.take(told(ME, 1)) == Change(began=True, gained=False, lost=False)


def test_word_of_an_older_leader_epoch_changes_nothing(partition: Partition) -> None:
    partition.take(told(ME, 3))
    assert partition.take(told(OTHER, 2)) is None
    assert (partition.role, partition.leader_epoch) == (Role.LEADER, 3)


def test_word_of_an_older_partition_epoch_changes_nothing(partition: Partition) -> None:
    partition.take(told(isr=[ME, OTHER], partition_epoch=6))
    assert partition.take(told(isr=[ME], partition_epoch=5)) is None
    assert partition.isr == (ME, OTHER)


def test_later_leader_epoch_counts_whatever_its_partition_epoch(partition: Partition) -> None:
    partition.take(told(ME, 1, partition_epoch=9))
    assert partition.take(told(OTHER, 2, partition_epoch=0)) is not None
    assert partition.role is Role.FOLLOWER


def test_same_word_again_is_no_change(partition: Partition) -> None:
    partition.take(told())
    assert partition.take(told()) is None


def test_isr_alone_changes_neither_role_nor_epoch(partition: Partition) -> None:
    partition.take(told())
    assert partition.take(told(isr=[ME, OTHER], partition_epoch=1)) == NOTHING
    assert partition.leads


def test_partition_is_alone_without_other_replicas_in_sync_or_not(partition: Partition) -> None:
    """Another replica that is not in sync may be about to join: it is asked where it is."""
    partition.take(told(isr=[ME]))
    assert not partition.is_alone
    partition.take(told(isr=[ME], replicas=[ME], epoch=1))
    assert partition.is_alone


def test_replica_that_was_asked_for_may_be_in_sync(partition: Partition) -> None:
    partition.min_in_sync = 2
    partition.take(told(isr=[ME]))
    partition.wanted_isr = (ME, OTHER)

    assert partition.maximal_isr == {ME, OTHER}
    assert partition.is_under_min_isr
    assert not partition.is_maximal_under_min_isr


def test_what_the_controller_returns_is_in_sync_from_then_on(partition: Partition) -> None:
    partition.take(told(isr=[ME], partition_epoch=3))
    partition.wanted_isr = (ME, OTHER)

    assert partition.adopt([ME, OTHER], 4)

    assert (partition.isr, partition.partition_epoch) == ((ME, OTHER), 4)
    assert partition.wanted_isr is None
    assert not partition.adopt([ME], 4), "it is no news"
    assert partition.isr == (ME, OTHER)


def test_same_word_again_does_not_settle_what_was_asked_for(partition: Partition) -> None:
    partition.take(told(isr=[ME]))
    partition.wanted_isr = (ME, OTHER)
    assert partition.take(told(isr=[ME])) is None
    assert partition.wanted_isr == (ME, OTHER)
    partition.take(told(isr=[ME], partition_epoch=1))
    assert partition.wanted_isr is None


@pytest.mark.parametrize(
    ("isr", "replicas", "min_in_sync", "is_under"),
    [
        ([ME], [ME, OTHER], 1, False),
        ([ME], [ME, OTHER], 2, True),
        ([ME, OTHER], [ME, OTHER], 2, False),
        ([ME], [ME], 2, False),
        ([ME], [ME, OTHER], 3, True),
        ([ME, OTHER], [ME, OTHER], 3, False),
    ],
)
def test_produce_with_acks_all_needs_so_many_in_sync(
    isr: list[int], replicas: list[int], min_in_sync: int, is_under: bool
) -> None:
    """No more than there are replicas, as in Kafka since 3.9."""
    partition = Partition(ME, min_in_sync)
    partition.take(told(isr=isr, replicas=replicas))
    assert partition.is_under_min_isr is is_under
    assert partition.is_maximal_under_min_isr is is_under


def test_partition_that_the_metadata_forgets_is_led_no_more(partition: Partition) -> None:
    partition.take(told(ME, 3))

    assert partition.resign() == Change(began=False, gained=False, lost=True)
    assert partition.resign() is None
    assert partition.take(told(ME, 3)) == Change(began=True, gained=True, lost=False)


# -- after a power failure --


def test_suspect_replica_leads_once_it_is_repaired(partition: Partition) -> None:
    partition.is_suspect = True

    assert partition.take(told(ME, 4)) == NOTHING
    assert (partition.role, partition.leads, partition.is_alone) == (Role.REPAIRING, False, False)

    assert partition.lead_repaired() == Change(began=True, gained=True, lost=False)
    assert (partition.role, partition.leader_epoch) == (Role.LEADER, 4)
    partition.take(told(ME, 5))
    assert partition.role is Role.LEADER


def test_suspect_replica_without_others_leads_at_once_and_is_suspect_no_more(
    partition: Partition,
) -> None:
    """There is nobody to ask; and what it acknowledges from then on, no other replica has."""
    partition.is_suspect = True

    assert partition.take(told(replicas=[ME])) == Change(began=True, gained=True, lost=False)
    partition.take(told(ME, 1, replicas=[ME, OTHER]))

    assert partition.role is Role.LEADER


def test_replica_that_another_leads_by_now_does_not_lead_when_it_is_repaired(
    partition: Partition,
) -> None:
    partition.is_suspect = True
    partition.take(told(ME, 4))

    assert partition.take(told(OTHER, 5)) == NOTHING
    assert partition.lead_repaired() is None
    assert (partition.role, partition.is_suspect) == (Role.FOLLOWER, True)


def test_later_epoch_of_a_replica_that_is_being_repaired_leaves_it_so(partition: Partition) -> None:
    partition.is_suspect = True
    partition.take(told(ME, 4))

    assert partition.take(told(ME, 5)) == NOTHING
    assert (partition.role, partition.leader_epoch) == (Role.REPAIRING, 5)
