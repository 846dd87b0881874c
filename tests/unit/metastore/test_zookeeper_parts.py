"""Parts of the ZooKeeper store that need no server."""

from __future__ import annotations

import select
import socket
from pathlib import Path

import pytest

from kbroker.metastore.session_file import FILE_NAME, SessionFile
from kbroker.metastore.store import CHANGED, CHILDREN, CREATED, DELETED, NodeStat
from kbroker.metastore.zookeeper_client import FIRST_RESPONSE_S, KazooHandler
from kbroker.metastore.zookeeper_connection import ReportQueue, RequestResult
from kbroker.metastore.zookeeper_watches import WatchedNode

pytestmark = pytest.mark.unit


def stat(created_id: int, version: int = 0, children: int = 0) -> NodeStat:
    return NodeStat(version, children, 0, 0, created_id, 0)


def kinds(node: WatchedNode, found: NodeStat | None) -> list[str]:
    return [event.kind for event in node.on_stat(found)]


def test_what_events_have_told_is_not_told_again() -> None:
    node = WatchedNode("/a")
    assert kinds(node, None) == []
    assert [event.kind for event in node.on_event(CREATED)] == [CREATED]
    assert kinds(node, stat(5)) == []
    assert len(node.on_event(CHANGED)) == len(node.on_event(CHILDREN)) == 1
    assert kinds(node, stat(5, 1, 1)) == []
    assert len(node.on_event(DELETED)) == 1
    assert node.on_event(DELETED) == []  # of the watch on its children
    assert kinds(node, None) == []


def test_what_happened_between_two_watches_is_told() -> None:
    node = WatchedNode("/a")
    kinds(node, stat(5))
    node.on_event(CHANGED)
    assert kinds(node, stat(5, 3)) == [CHANGED]
    assert kinds(node, stat(5, 3, 2)) == [CHILDREN]
    assert kinds(node, stat(9, 1, 1)) == [DELETED, CREATED, CHANGED, CHILDREN]
    assert kinds(node, None) == [DELETED]
    assert kinds(node, stat(10)) == [CREATED]


def test_reports_wake_their_owner_until_all_are_taken() -> None:
    reports = ReportQueue()
    poll = select.poll()
    poll.register(reports.fd, select.POLLIN)
    assert not poll.poll(0)
    answers = [RequestResult(reports) for _ in range(3)]
    for number, response in enumerate(answers):
        response.set(number)
        response.set_exception(ValueError())  # kazoo may fail a request twice
    assert poll.poll(0)
    assert reports.take(2) == answers[:2]
    assert poll.poll(0)
    assert reports.take(2) == answers[2:]
    assert not poll.poll(0)
    assert reports.take(2) == []
    assert answers[0].error is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"connect": "z", "id": 1, "password": "x"}'])
def test_damaged_session_file_means_a_new_session(tmp_path: Path, text: str) -> None:
    file = SessionFile(str(tmp_path), "z")
    assert file.read() is None
    (tmp_path / FILE_NAME).write_text(text)
    assert file.read() is None
    file.write((7, b"\x01\x02"))
    file.write((8, b"\x03"))
    assert file.read() == (8, b"\x03")
    assert SessionFile(str(tmp_path), "another").read() is None


def test_each_connection_without_response_gives_the_next_one_twice_the_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        handler = KazooHandler(None, hosts=1)

        def connect() -> float:
            connection = handler.create_connection(server.getsockname(), timeout=5.0)
            far, _ = server.accept()
            with far:
                if answers:
                    far.sendall(b"x")
                    assert connection.recv(1) == b"x"
            connection.close()
            return connection.response_s

        answers = False
        assert [connect() for _ in range(3)] == [FIRST_RESPONSE_S, 2 * FIRST_RESPONSE_S, 5.0]
        answers = True
        assert [connect() for _ in range(2)] == [5.0, FIRST_RESPONSE_S]
