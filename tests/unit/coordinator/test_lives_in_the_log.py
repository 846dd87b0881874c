"""Log messages about groups, offsets and transactions: the reason, the client, the generation."""

from __future__ import annotations

import pytest
from support.clients.group_clients import Client, classic_host, form_group, rejoin
from support.coordinators.consumer_member import FakeConsumer, make_host
from support.coordinators.offsets_host import OffsetsHost
from support.coordinators.transaction_host import ID, host_with_topics

from kbroker.errors import ErrorCode, WireError

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


def taken(caplog: pytest.LogCaptureFixture) -> str:
    """Returns the INFO messages logged since the last call."""
    lines = [one.getMessage() for one in caplog.records if one.levelname == "INFO"]
    caplog.clear()
    return "\n".join(lines)


def test_classic_rebalance_says_why_who_and_which_generation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = classic_host()
    first, second = form_group(host, Client(host, "a"), Client(host, "b"))
    text = taken(caplog)
    assert "group g: generation 1 has 2 members and protocol range, its leader is " in text
    assert f"group g: received the assignment of generation 1 from {first.member_id}" in text

    third = Client(host, "c")
    third.join()
    text = taken(caplog)
    assert "group g: rebalance after generation 1 (Stable), 3 members: " in text
    assert "c-" in text.partition("3 members: ")[2], "who it is because of"
    rejoin(first, second)
    assert "group g: generation 2 has 3 members" in taken(caplog)

    second.leave("tired")
    text = taken(caplog)
    assert f"group g: {second.member_id} leaves" in text and "tired" in text
    assert "group g: rebalance after generation 2" in text


def test_end_of_a_classic_session_says_whose(caplog: pytest.LogCaptureFixture) -> None:
    host = classic_host()
    silent, _ = form_group(host, Client(host, "a"), Client(host, "b", session_ms=300_000))
    caplog.clear()

    host.advance(60_000)

    assert f"group g: the session of {silent.member_id} has expired, generation 1" in taken(caplog)


def test_fenced_static_member_is_named(caplog: pytest.LogCaptureFixture) -> None:
    host = classic_host()
    old, _ = form_group(host, Client(host, "a", instance_id="i"), Client(host, "b"))
    caplog.clear()
    new = Client(host, "a", instance_id="i")
    new.joined(new.join())
    text = taken(caplog)
    said = f"static member i now has member id {new.member_id}; fenced {old.member_id}"
    assert f"group g: {said}" in text

    assert old.beat() == ErrorCode.FENCED_INSTANCE_ID
    assert f"with member id {old.member_id}; it is now {new.member_id}" in taken(caplog)


def test_fenced_member_of_the_consumer_protocol_is_named(caplog: pytest.LogCaptureFixture) -> None:
    host = make_host()
    host.add_topic("a", 1)
    member = FakeConsumer(host, "m1", ["a"])
    member.join()
    caplog.clear()

    with pytest.raises(WireError):
        member.send(member_epoch=7)

    assert "group g: member m1 is fenced, epoch 7 is not the member's (1)" in taken(caplog)


def test_expired_offsets_are_counted_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    host = OffsetsHost(offsets_retention_minutes="10", offsets_retention_check_interval_ms="60000")
    host.commit_offset(1)
    host.commit_offset(1, partition=1)
    host.advance(12 * 60_000)

    assert "__consumer_offsets-0: 2 committed offsets have expired" in taken(caplog)


def test_fenced_producer_is_named_wherever_it_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = host_with_topics()
    old = host.producer()
    new = host.producer()
    assert f"transactional id {ID}: producer {new[0]} starts with epoch 1 and fences " in taken(
        caplog
    )
    line = (
        f"transactional id {ID}: producer {old[0]} with epoch 0 is fenced by producer {new[0]} with"
    )

    assert host.add(old, 0) == [ErrorCode.PRODUCER_FENCED]
    assert line in taken(caplog)
    host.add(new, 0)
    assert host.end(old, True).error_code == ErrorCode.PRODUCER_FENCED
    assert line in taken(caplog)
    assert host.init(producer_id=old[0], producer_epoch=old[1]).error_code != 0
    assert line in taken(caplog)


def test_abort_for_another_producer_says_so(caplog: pytest.LogCaptureFixture) -> None:
    host = host_with_topics()
    host.add(host.producer(), 0)
    caplog.clear()

    host.init()

    text = taken(caplog)
    assert f"transactional id {ID}: transaction of producer " in text
    assert "is aborted: another producer starts" in text
