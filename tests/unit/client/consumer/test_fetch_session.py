"""A fetch session tells the broker what has changed, and begins again when it is lost."""

from __future__ import annotations

import pytest

from kbroker.client.consumer.fetch_session import FetchSession, RequestedPartition

pytestmark = pytest.mark.unit

ID, OTHER = bytes(15) + b"\1", bytes(15) + b"\2"


def wanted(*offsets: int, topic_id: bytes = ID) -> dict:
    return {
        ("t", n): RequestedPartition(topic_id, offset, 5, 100) for n, offset in enumerate(offsets)
    }


def rows(fields: dict, name: str = "topics") -> list:
    if name == "topics":
        return [(row.partition, row.fetch_offset) for t in fields[name] for row in t.partitions]
    return [(topic.topic_id, topic.partitions) for topic in fields[name]]


def opened(*offsets: int) -> FetchSession:
    session = FetchSession()
    fields = session.fields(wanted(*offsets), True)
    assert (fields["session_id"], fields["session_epoch"]) == (0, 0)
    session.accepted(77)
    return session


def test_only_changes_are_sent():
    session = opened(1, 2, 3)

    fields = session.fields(wanted(1, 9), True)

    assert (fields["session_id"], fields["session_epoch"]) == (77, 1)
    assert rows(fields) == [(1, 9)]
    assert rows(fields, "forgotten_topics_data") == [(ID, [2])]
    session.accepted(77)
    assert rows(session.fields(wanted(1, 9), True)) == []
    assert session.epoch == 2


def test_a_topic_with_another_id_is_forgotten_and_added():
    session = opened(1)
    fields = session.fields(wanted(1, topic_id=OTHER), True)
    assert rows(fields) == [(0, 1)]
    assert rows(fields, "forgotten_topics_data") == [(ID, [0])]


@pytest.mark.parametrize("end", ["reset", "refused", "names"])
def test_a_lost_session_begins_with_everything(end):
    session = opened(1, 2)
    if end == "reset":
        session.reset()
    elif end == "refused":
        session.accepted(0)
    fields = session.fields(wanted(1, 2), end != "names")
    assert (fields["session_id"], fields["session_epoch"]) == (0, 0)
    assert rows(fields) == [(0, 1), (1, 2)]


def test_epochs_wrap_to_one():
    session = opened(1)
    session.epoch = (1 << 31) - 1
    session.accepted(77)
    assert session.epoch == 1
    assert session.final()["session_epoch"] == -1
