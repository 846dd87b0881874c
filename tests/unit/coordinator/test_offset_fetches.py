"""The three forms of OffsetFetch: one group, several groups, topics by id."""

from __future__ import annotations

import pytest
from support.coordinators.offsets_host import NOTHING, FakeGroup, OffsetsHost, fetch_group

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest

pytestmark = pytest.mark.unit

UNSTABLE = (-1, -1, "", int(ErrorCode.UNSTABLE_OFFSET_COMMIT))


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


@pytest.mark.parametrize("version", range(1, 11))
def test_offset_that_was_never_committed_is_no_error(version: int) -> None:
    host = OffsetsHost()

    assert host.fetch("nobody", version=version) == NOTHING
    host.commit_offset(7, leader_epoch=3, metadata="m")

    epoch = 3 if version >= 5 else -1
    assert host.fetch(version=version) == (7, epoch, "m", 0)
    assert host.fetch(partition=1, version=version) == NOTHING
    assert host.fetch(topic="u", version=version) == NOTHING


@pytest.mark.parametrize("version", [2, 7, 8, 9])
def test_null_topics_are_all_the_group_has(version: int) -> None:
    host = OffsetsHost()
    host.commit_offset(7)
    host.commit_offset(8, topic="u", partition=2)
    host.commit_offset(9, group="other")

    assert host.fetch_all(version=version) == {
        ("t", 0): (7, -1, "", 0),
        ("u", 2): (8, -1, "", 0),
    }
    assert host.fetch_all("nobody", version=version) == {}


def test_several_groups_get_separate_results() -> None:
    host = OffsetsHost()
    host.commit_offset(7)
    host.put_group(FakeGroup("bad", reject=ErrorCode.UNKNOWN_MEMBER_ID))
    request = OffsetFetchRequest(
        groups=[
            fetch_group("bad", {"t": [0]}, member_id="m", member_epoch=4),
            fetch_group("g", {"t": [0]}),
        ]
    )

    bad, good = host.ask(request, 9).groups

    assert (bad.group_id, bad.error_code, bad.topics) == ("bad", ErrorCode.UNKNOWN_MEMBER_ID, [])
    assert (good.group_id, good.error_code) == ("g", 0)
    assert good.topics[0].partitions[0].committed_offset == 7
    assert host.machine.groups["bad"].checked == [("m", 4)]


@pytest.mark.parametrize("version", [1, 7, 9, 10])
def test_partition_that_is_named_again_is_in_the_response_once(version: int) -> None:
    """Four bytes for its number, and up to 4,096 for the metadata committed with its offset."""
    host = OffsetsHost()
    host.commit_offset(7, metadata="m")
    partitions = {"t": [0, 1, 0, 0]}
    if version >= 8:
        groups = [fetch_group("g", partitions, by_id=version >= 10)]
        groups[0].topics *= 2
        found = host.ask(OffsetFetchRequest(groups=groups), version).groups[0]
    else:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1, 0])
        found = host.ask(OffsetFetchRequest(group_id="g", topics=[topic] * 2), version)

    answered = [p.partition_index for topic in found.topics for p in topic.partitions]

    assert answered == [0, 1]


def test_error_of_one_group_is_where_old_versions_have_it() -> None:
    host = OffsetsHost()
    host.put_group(FakeGroup(reject=ErrorCode.STALE_MEMBER_EPOCH))
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])
    request = OffsetFetchRequest(group_id="g", topics=[topic])

    response = host.ask(request, 7)
    assert (response.error_code, response.topics) == (ErrorCode.STALE_MEMBER_EPOCH, [])

    partitions = host.ask(request, 1).topics[0].partitions
    assert [(p.partition_index, p.committed_offset, p.error_code) for p in partitions] == [
        (0, -1, ErrorCode.STALE_MEMBER_EPOCH),
        (1, -1, ErrorCode.STALE_MEMBER_EPOCH),
    ]


def test_dead_group_has_no_offsets_and_no_error() -> None:
    host = OffsetsHost()
    host.put_group(FakeGroup(reject=ErrorCode.GROUP_ID_NOT_FOUND))

    assert host.fetch() == NOTHING


@pytest.mark.parametrize("version", [7, 9])
def test_stable_offset_waits_for_the_transaction(version: int) -> None:
    host = OffsetsHost()
    host.commit_offset(1)
    host.commit_offset(2, partition=1)
    host.commit_in_transaction(3)

    assert host.fetch(version=version) == (1, -1, "", 0)
    assert host.fetch(version=version, require_stable=True) == UNSTABLE
    assert host.fetch(partition=1, version=version, require_stable=True) == (2, -1, "", 0)
    assert host.fetch_all(version=version, require_stable=True) == {
        ("t", 0): UNSTABLE,
        ("t", 1): (2, -1, "", 0),
    }

    host.append_marker(1, 0, commit=True)
    assert host.fetch(version=version, require_stable=True) == (3, -1, "", 0)


def test_stable_offset_waits_also_where_none_is_committed() -> None:
    host = OffsetsHost()
    host.commit_in_transaction(3)

    assert host.fetch(require_stable=True) == UNSTABLE
    assert host.fetch_all(require_stable=True) == {}


def test_unknown_topic_id_is_an_error_of_its_partitions() -> None:
    host = OffsetsHost()
    host.commit_offset(7)
    request = OffsetFetchRequest(groups=[fetch_group("g", {"t": [0], "nobody": [0]}, by_id=True)])

    known, unknown = host.ask(request, 10).groups[0].topics

    assert (known.topic_id, known.partitions[0].committed_offset) == (topic_id("t"), 7)
    assert unknown.topic_id == topic_id("nobody")
    assert (unknown.partitions[0].committed_offset, unknown.partitions[0].error_code) == (
        -1,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )


def test_all_topics_by_id_leaves_out_those_without_one() -> None:
    host = OffsetsHost()
    host.commit_offset(7)
    host.offsets.store.put_commit("g", "gone", 0, 1, -1, "", 0, -1, bytes(16), 0, -1)
    request = OffsetFetchRequest(groups=[fetch_group("g", None)])

    assert [topic.topic_id for topic in host.ask(request, 10).groups[0].topics] == [topic_id("t")]
    names = {topic.name for topic in host.ask(request, 9).groups[0].topics}
    assert names == {"t", "gone"}


def test_offset_of_another_topic_of_that_name_is_not_given_by_id() -> None:
    host = OffsetsHost()
    for partition, of in enumerate((topic_id("t"), b"another-topic-id", bytes(16))):
        host.offsets.store.put_commit("g", "t", partition, 9, -1, "", 0, -1, of, partition, -1)

    assert [host.fetch(partition=p, version=10)[0] for p in range(3)] == [9, -1, 9]
    assert [host.fetch(partition=p, version=9)[0] for p in range(3)] == [9, 9, 9]
