"""Which offsets expire and when (KIP-211), and what is deleted with groups and topics."""

from __future__ import annotations

from typing import Any

import pytest
from support.coordinators.coordinator_host import WALL_MS
from support.coordinators.offsets_host import FakeGroup, OffsetsHost
from support.network.network_process import topic_document

from kbroker.coordinator.group.group import CONSUMER
from kbroker.coordinator.offsets import batches
from kbroker.coordinator.records.offsets_topic import GroupMetadataKey
from kbroker.errors import ErrorCode, WireError
from kbroker.metrics.catalog import OFFSETS, OFFSETS_EXPIRED

pytestmark = pytest.mark.unit

MINUTE_MS = 60_000
RETENTION_MS = 10 * MINUTE_MS
CHECK_MS = MINUTE_MS


def make_host() -> OffsetsHost:
    return OffsetsHost(
        offsets_retention_minutes="10", offsets_retention_check_interval_ms=str(CHECK_MS)
    )


def kept(host: OffsetsHost) -> set[tuple[str, int]]:
    return set(host.fetch_all())


def deleted_groups(host: OffsetsHost) -> set[str]:
    return {
        key.group
        for records in host.written
        for key, value in records
        if isinstance(key, GroupMetadataKey) and value is None
    }


def test_offset_of_a_group_that_only_commits_expires_after_its_commit() -> None:
    host = make_host()
    host.commit_offset(1)
    host.advance(5 * MINUTE_MS)
    host.commit_offset(2, partition=1)

    host.advance(4 * MINUTE_MS)
    assert kept(host) == {("t", 0), ("t", 1)}
    host.advance(2 * MINUTE_MS)
    assert kept(host) == {("t", 1)}
    host.advance(10 * MINUTE_MS)

    assert kept(host) == set() and not host.offsets.has_group("g")
    assert host.counted[OFFSETS_EXPIRED.name] == 2
    assert host.counted[OFFSETS.name] == 0
    host.reload()
    assert kept(host) == set()


@pytest.mark.parametrize("jump", [3650 * 1440 * MINUTE_MS, 120 * MINUTE_MS])
def test_clock_that_jumps_expires_no_offset(jump: int) -> None:
    host = make_host()
    host.commit_offset(1)
    host.clock.jump(jump)
    host.advance(CHECK_MS)
    host.clock.jump(-jump)
    host.advance(2 * CHECK_MS)

    assert kept(host) == {("t", 0)}


def test_new_commit_starts_the_time_again() -> None:
    host = make_host()
    host.commit_offset(1)
    host.advance(9 * MINUTE_MS)
    host.commit_offset(1)
    host.advance(9 * MINUTE_MS)

    assert kept(host) == {("t", 0)}


def test_offsets_of_an_empty_group_expire_after_it_became_empty() -> None:
    host = make_host()
    host.commit_offset(1)
    host.advance(30_000)
    host.put_group(FakeGroup(empty_since_ms=WALL_MS + 8 * MINUTE_MS))

    host.advance(17 * MINUTE_MS)
    assert kept(host) == {("t", 0)}
    host.advance(2 * MINUTE_MS)

    assert kept(host) == set()
    assert deleted_groups(host) == {"g"}


def test_empty_group_of_unknown_age_goes_by_its_commits() -> None:
    host = make_host()
    host.commit_offset(1)
    host.put_group(FakeGroup(empty_since_ms=-1))
    host.advance(RETENTION_MS + CHECK_MS)

    assert kept(host) == set() and deleted_groups(host) == {"g"}


def test_offsets_stay_while_somebody_is_about_to_join() -> None:
    """A new member id hides since when the group is empty."""
    host = make_host()
    host.commit_offset(1)
    host.put_group(FakeGroup(empty_since_ms=None))
    host.advance(RETENTION_MS + 2 * CHECK_MS)

    assert kept(host) == {("t", 0)} and deleted_groups(host) == set()


@pytest.mark.parametrize(
    "values",
    [
        {"state": "Stable"},
        {"state": "Stable", "kind": CONSUMER},
        {"state": "Reconciling", "kind": CONSUMER},
    ],
)
def test_topics_nobody_subscribes_to_expire_in_a_living_group(values: dict[str, Any]) -> None:
    host = make_host()
    host.commit_offset(1)
    host.commit_offset(1, topic="u")
    host.put_group(FakeGroup(is_empty=False, empty_since_ms=None, subscribed={"u"}, **values))
    host.advance(RETENTION_MS + CHECK_MS)

    assert kept(host) == {("u", 0)} and deleted_groups(host) == set()


@pytest.mark.parametrize(
    "values",
    [
        {"state": "PreparingRebalance"},
        {"state": "Stable", "protocol_type": "connect"},
    ],
)
def test_nothing_expires_where_the_topics_are_not_known(values: dict[str, Any]) -> None:
    host = make_host()
    host.commit_offset(1)
    host.put_group(FakeGroup(is_empty=False, empty_since_ms=None, **values))
    host.advance(3 * RETENTION_MS)

    assert kept(host) == {("t", 0)}


def test_offset_that_a_transaction_is_to_replace_stays_with_its_group() -> None:
    host = make_host()
    host.commit_offset(1)
    host.commit_offset(1, partition=1)
    host.commit_in_transaction(2)
    host.put_group(FakeGroup(empty_since_ms=WALL_MS))
    host.advance(RETENTION_MS + CHECK_MS)

    assert kept(host) == {("t", 0)} and deleted_groups(host) == set()
    host.append_marker(1, 0, commit=False)
    host.advance(CHECK_MS)
    assert kept(host) == set() and deleted_groups(host) == {"g"}


def test_expiry_of_its_own_outlasts_and_undercuts_the_retention() -> None:
    host = make_host()
    host.commit_offset(1, version=2, retention_time_ms=MINUTE_MS)
    host.commit_offset(1, partition=1, version=2, retention_time_ms=20 * MINUTE_MS)

    host.advance(2 * MINUTE_MS)
    assert kept(host) == {("t", 1)}
    host.advance(16 * MINUTE_MS)
    assert kept(host) == {("t", 1)}
    host.advance(4 * MINUTE_MS)
    assert kept(host) == set()


def test_empty_group_without_offsets_is_deleted_unless_it_rejects() -> None:
    host = make_host()
    host.put_group(FakeGroup("a"))
    host.put_group(FakeGroup("b", reject=ErrorCode.NON_EMPTY_GROUP))
    host.put_group(FakeGroup("c", is_empty=False, empty_since_ms=None, state="Stable"))

    host.advance(CHECK_MS)

    assert deleted_groups(host) == {"a"}


def test_sweep_is_cut_into_operations_and_gets_through_all(monkeypatch: Any) -> None:
    monkeypatch.setattr(batches, "TOMBSTONE_BYTES_MAX", 300)
    host = make_host()
    for number in range(300):
        host.commit_offset(1, group=f"g{number}", partition=number % 4)
    written = len(host.written)

    host.advance(RETENTION_MS + CHECK_MS + 1000)

    assert len(host.offsets.store) == 0
    sizes = [len(records) for records in host.written[written:]]
    assert sum(sizes) == 300 and max(sizes) <= 10


def test_sweep_that_cannot_write_tries_again_later() -> None:
    host = make_host()
    host.commit_offset(1)
    host.fail_with = WireError(ErrorCode.NOT_COORDINATOR)
    host.advance(RETENTION_MS + 3 * CHECK_MS)
    assert kept(host) == {("t", 0)}

    host.fail_with = None
    host.advance(2 * CHECK_MS)

    assert kept(host) == set()


def test_deleted_topic_takes_its_offsets_along() -> None:
    host = make_host()
    for group in ("g", "h"):
        host.commit_offset(1, group=group)
        host.commit_offset(1, group=group, topic="u")
    host.commit_in_transaction(2, partition=3)

    host.set_topics(t=None)
    host.append_marker(1, 0, commit=True)

    assert kept(host) == {("u", 0)}
    assert set(host.fetch_all("h")) == {("u", 0)}
    host.reload()
    assert kept(host) == {("u", 0)}


def test_topic_recreated_starts_without_offsets() -> None:
    host = make_host()
    host.commit_offset(1)

    host.set_topics(t=topic_document(b"another-topic-id", [0, 1]))

    assert kept(host) == set()


def test_topic_that_grows_keeps_its_offsets() -> None:
    host = make_host()
    host.commit_offset(1)

    host.add_topic("t", 8)

    assert kept(host) == {("t", 0)}


def test_large_topic_goes_in_steps_and_spares_what_is_committed_after() -> None:
    """A topic may be recreated while the offsets of the old one are still being deleted."""
    host = make_host()
    host.add_topic("t", 5000)
    count = 5000
    for partition in range(count):
        host.offsets.store.put_commit("g", "t", partition, 1, -1, "", 0, -1, bytes(16), 0, -1)
    host.offsets.store.log_end = 1

    host.set_topics(t=topic_document(b"another-topic-id", list(range(count))))
    left = len(host.offsets.store)
    assert 0 < left < count
    host.commit_offset(77, partition=4999)
    host.commit_offset(78, partition=0)
    host.advance(1)

    assert host.fetch_all() == {("t", 0): (78, -1, "", 0), ("t", 4999): (77, -1, "", 0)}


def test_deletion_that_cannot_write_continues_later() -> None:
    host = make_host()
    host.commit_offset(1)
    host.commit_offset(1, topic="u")
    host.fail_with = WireError(ErrorCode.NOT_COORDINATOR)
    host.set_topics(t=None, u=None)
    host.advance(3000)
    assert len(host.offsets.store) == 2

    host.fail_with = None
    host.advance(2000)

    assert len(host.offsets.store) == 0


def test_deleted_group_takes_its_offsets_along() -> None:
    host = make_host()
    for number in range(4):
        host.commit_offset(1, partition=number)
        host.commit_offset(1, partition=number, group="h")
    host.commit_in_transaction(2, topic="u")

    host.execute(host.offsets.delete_group, "g")
    host.append_marker(1, 0, commit=True)

    assert host.offsets.group_ids() == ["h"]
    assert len(host.fetch_all("h")) == 4
    assert not host.offsets.has_group("g")


def test_large_group_is_deleted_in_steps() -> None:
    host = make_host()
    for partition in range(5000):
        host.offsets.store.put_commit("g", "t", partition, 1, -1, "", 0, -1, bytes(16), 0, -1)
    host.offsets.store.log_end = 1

    host.execute(host.offsets.delete_group, "g")
    assert host.offsets.has_group("g")
    host.advance(1)

    assert not host.offsets.has_group("g")
    assert len(host.written) > 1
