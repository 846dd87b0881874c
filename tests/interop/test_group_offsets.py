"""Committed offsets and groups, through every admin client and Kafka's own scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from interop.conftest import GROUP_JAVA, clients
from support.drivers import AdminDriver, ClientError, Driver, Message
from support.drivers.groups import GroupAdmin, Offset, OffsetAdmin
from support.drivers.members import Member, Partition

from kbroker.testing import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

OFFSET_METADATA_TOO_LARGE = 12
UNKNOWN_MEMBER_ID = 25
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
GROUP_SUBSCRIBED_TO_TOPIC = 86
METADATA_BYTES_MAX = 4096
JOIN_S = 20.0

READERS = clients("confluent-kafka", "kafka-python", "aiokafka", *GROUP_JAVA)
OFFSET_ADMINS = clients("confluent-kafka", "kafka-python", *GROUP_JAVA)
OFFSET_DELETERS = clients("kafka-python", *GROUP_JAVA)

Join = Callable[..., Member]


@pytest.fixture
def admin(request: pytest.FixtureRequest, groups_of: Callable[[str], GroupAdmin]) -> OffsetAdmin:
    return groups_of(request.param)  # type: ignore[return-value]


@pytest.fixture
def writer(driver_of: Callable[[str], Driver]) -> AdminDriver:
    return driver_of("confluent-kafka")  # type: ignore[return-value]


@pytest.fixture
def topic3(topic: str, create: Callable[..., None]) -> str:
    create(topic, 3)
    return topic


def code_of(call: Callable[..., object], *arguments: Any) -> int:
    """The error code of a failed call."""
    with pytest.raises(ClientError) as failed:
        call(*arguments)
    return failed.value.code


def stripped(offsets: dict[Partition, Offset]) -> dict[Partition, Offset]:
    """Without the NUL that confluent-kafka sends at the end of metadata."""
    return {where: (offset, text.rstrip("\0")) for where, (offset, text) in offsets.items()}


@pytest.mark.parametrize("admin", OFFSET_ADMINS, indirect=True)
def test_altered_offsets_come_back_with_their_metadata(
    admin: OffsetAdmin, groups_of: Callable[[str], GroupAdmin], topic3: str, group: str
) -> None:
    """The group is created with its offsets; every client sees the same."""
    offsets = {(topic3, 0): (7, "why: ünïcode"), (topic3, 2): (1 << 40, "")}
    admin.alter_offsets(group, offsets)
    for name in ("confluent-kafka", "kafka-python", "aiokafka", admin.name):
        assert stripped(groups_of(name).offsets(group)) == offsets
        assert group in groups_of(name).groups()
    admin.alter_offsets(group, {(topic3, 0): (3, "")})
    assert stripped(admin.offsets(group)) == {**offsets, (topic3, 0): (3, "")}
    assert admin.describe(group).state == "Empty"
    admin.delete(group)
    assert admin.offsets(group) == {}
    assert group not in admin.groups()


@pytest.mark.parametrize("admin", OFFSET_ADMINS, indirect=True)
def test_metadata_has_a_bound(admin: OffsetAdmin, topic3: str, group: str) -> None:
    longest = "m" * (METADATA_BYTES_MAX - len(admin.terminator))
    admin.alter_offsets(group, {(topic3, 0): (1, longest)})
    too_long = {(topic3, 0): (2, longest + "m")}
    assert code_of(admin.alter_offsets, group, too_long) == OFFSET_METADATA_TOO_LARGE
    assert stripped(admin.offsets(group)) == {(topic3, 0): (1, longest)}


@pytest.mark.parametrize("admin", READERS, indirect=True)
def test_unknown_group_has_no_offsets(admin: OffsetAdmin, group: str) -> None:
    assert admin.offsets(group) == {}
    assert group not in admin.groups()


@pytest.mark.parametrize("admin", OFFSET_ADMINS, indirect=True)
def test_unknown_group_cannot_be_deleted(admin: OffsetAdmin, group: str) -> None:
    assert code_of(admin.delete, group) == GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("admin", READERS, indirect=True)
def test_unknown_group_is_dead(admin: OffsetAdmin, group: str) -> None:
    """Older clients get the state Dead, those with DescribeGroups 6 an error."""
    if admin.name == "java 4.3.0":
        assert code_of(admin.describe, group) == GROUP_ID_NOT_FOUND
    else:
        assert admin.describe(group).state == "Dead"


@pytest.mark.parametrize("admin", OFFSET_ADMINS, indirect=True)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_with_members_is_guarded(
    admin: OffsetAdmin, protocol: str, join: Join, topic3: str, group: str
) -> None:
    """It is not deleted, and no other client changes its offsets."""
    member = join("confluent-kafka", group, topic3, protocol=protocol)
    wait_until(lambda: len(member.owned) == 3, JOIN_S)
    assert code_of(admin.delete, group) == NON_EMPTY_GROUP
    assert code_of(admin.alter_offsets, group, {(topic3, 0): (1, "")}) == UNKNOWN_MEMBER_ID
    assert len(member.owned) == 3


@pytest.mark.parametrize("admin", OFFSET_DELETERS, indirect=True)
def test_single_offsets_are_deleted(
    admin: OffsetAdmin, join: Join, create: Callable[..., None], topic3: str, group: str
) -> None:
    """Except those of a topic that a member reads."""
    other = f"{topic3}-other"
    create(other)
    admin.alter_offsets(group, {(topic3, 0): (1, ""), (topic3, 1): (2, ""), (other, 0): (3, "")})
    admin.delete_offsets(group, [(topic3, 0)])
    assert admin.offsets(group) == {(topic3, 1): (2, ""), (other, 0): (3, "")}
    member = join("confluent-kafka", group, topic3)
    wait_until(lambda: len(member.owned) == 3, JOIN_S)
    assert code_of(admin.delete_offsets, group, [(topic3, 1)]) == GROUP_SUBSCRIBED_TO_TOPIC
    admin.delete_offsets(group, [(other, 0)])
    assert admin.offsets(group) == {(topic3, 1): (2, "")}
    assert code_of(admin.delete_offsets, f"{group}-none", [(topic3, 1)]) == GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_member_starts_where_an_administrator_put_it(
    protocol: str,
    join: Join,
    writer: AdminDriver,
    groups_of: Callable[[str], GroupAdmin],
    made: str,
    group: str,
) -> None:
    writer.produce(made, [Message(b"%d" % number) for number in range(10)])
    groups_of("kafka-python").alter_offsets(group, {(made, 0): (7, "")})  # type: ignore[attr-defined]
    member = join("confluent-kafka", group, made, protocol=protocol)
    wait_until(lambda: len(member.taken) >= 3, JOIN_S)
    assert [record.value for record in member.taken] == ["7", "8", "9"]


def test_offsets_of_a_deleted_topic_are_gone(
    writer: AdminDriver,
    create: Callable[..., None],
    groups_of: Callable[[str], GroupAdmin],
    topic3: str,
    group: str,
) -> None:
    admin: OffsetAdmin = groups_of("kafka-python")
    create(f"{topic3}-stays")
    admin.alter_offsets(group, {(topic3, 0): (5, ""), (f"{topic3}-stays", 0): (6, "")})
    writer.delete_topic(topic3)
    wait_until(lambda: admin.offsets(group) == {(f"{topic3}-stays", 0): (6, "")}, JOIN_S)
