"""Followers whose leader wants TLS and a login: what they replicate, and connections that end."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers.fake_broker import sasl_responses
from support.replication.follower_host import FollowerHost
from support.replication.scripted_leader import ScriptedLeader
from support.security.secured_peers import PASSWORD, USER, SecuredPeers

pytestmark = pytest.mark.unit

Make = Callable[..., FollowerHost]


@pytest.fixture
def peers(tmp_path: Path) -> SecuredPeers:
    return SecuredPeers(tmp_path)


@pytest.fixture
def leader(peers: SecuredPeers) -> Iterator[ScriptedLeader]:
    with ScriptedLeader() as started:
        started.context = peers.server_context()
        yield started


@pytest.fixture
def host(tmp_path: Path, leader: ScriptedLeader, peers: SecuredPeers) -> Iterator[Make]:
    made: list[FollowerHost] = []

    def make(protocol: str, lifetime_ms: int = 0, **options: Any) -> FollowerHost:
        leader.answers |= sasl_responses("PLAIN", USER, PASSWORD, lifetime_ms)
        if not protocol.endswith("SSL"):
            leader.context = None
        settings = peers.settings(protocol) | options
        made.append(FollowerHost(tmp_path, leader, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def in_step(host: FollowerHost, leader: ScriptedLeader) -> Callable[[], bool]:
    log = leader.log()
    return lambda: host.log().log_end_offset == log.end == host.log().high_watermark


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_log_becomes_the_leaders(host: Make, leader: ScriptedLeader, protocol: str) -> None:
    """In batches that end anywhere in a TLS record, and responses of many turns."""
    follower = host(protocol)
    for size in (1, 16_000, 17_000, 400_000, 1, 700_000):
        leader.log().append([bytes(size)])
    follower.publish()
    follower.run_until(in_step(follower, leader))

    assert follower.bytes_of() == leader.log().data()


def test_waiting_fetch_takes_what_comes_later(host: Make, leader: ScriptedLeader) -> None:
    follower = host("SASL_SSL")
    follower.publish()
    for size in (100, 20_000, 40_000):
        leader.log().append([bytes(size)])
        leader.publish()
        follower.run_until(in_step(follower, leader))

    assert follower.bytes_of() == leader.log().data()
    assert leader.connections == 1


def test_session_that_is_about_to_end_is_renewed_while_following(
    host: Make, leader: ScriptedLeader, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the leader closes the connection, and producers wait for the backoff."""
    follower = host("SASL_SSL", lifetime_ms=700)
    follower.publish()
    with caplog.at_level(logging.INFO):
        while leader.connections < 3:
            leader.log().append(1)
            leader.publish()
            follower.run_until(in_step(follower, leader))

    assert follower.bytes_of() == leader.log().data()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert caplog.text.count("connected to broker") == 1


def test_lost_connection_is_made_again(host: Make, leader: ScriptedLeader) -> None:
    follower = host("SASL_SSL")
    follower.publish()
    leader.log().append(1)
    follower.run_until(in_step(follower, leader))
    leader.spoil = lambda key, request, response, state: None
    leader.log().append([bytes(50_000)])
    leader.publish()
    before = leader.connections
    follower.run_until(lambda: leader.connections > before + 1)
    leader.spoil = None
    follower.run_until(in_step(follower, leader))

    assert follower.bytes_of() == leader.log().data()


def test_response_that_ends_in_the_middle_is_fetched_again(
    host: Make, leader: ScriptedLeader
) -> None:
    follower = host("SSL")
    left = [10, 5_000, 20_000, 90_000]

    def cut(key: int, request: Any, response: Any, state: dict[str, Any]) -> Any:
        frame = state["frame_of"](response)
        if not left or len(frame) < left[0]:
            return frame
        return pieces(frame[: left.pop(0)])

    def pieces(frame: bytes) -> Iterator[bytes]:
        yield frame
        raise OSError("closed")

    leader.spoil = cut
    for _ in range(10):
        leader.log().append([bytes(10_000)])
    follower.publish()
    follower.run_until(in_step(follower, leader))

    assert follower.bytes_of() == leader.log().data()


def test_refused_login_is_one_line_with_the_reason_and_is_tried_again(
    host: Make, leader: ScriptedLeader, caplog: pytest.LogCaptureFixture
) -> None:
    follower = host("SASL_SSL")
    leader.answers |= sasl_responses("PLAIN", USER, "another")
    follower.publish()
    follower.run_until(lambda: leader.connections >= 3)
    (line,) = [r.getMessage() for r in caplog.records if "cannot connect" in r.getMessage()]
    assert line == (
        "cannot connect to broker 5, the leader of 1 partitions: the login of this broker as "
        f"{USER!r} failed: SASL PLAIN: wrong user or password; trying again"
    )
    assert PASSWORD not in caplog.text

    leader.answers |= sasl_responses("PLAIN", USER, PASSWORD)
    leader.log().append(1)
    follower.run_until(in_step(follower, leader))


def test_leader_that_requires_a_certificate_says_so_in_one_line(
    host: Make, leader: ScriptedLeader, peers: SecuredPeers, caplog: pytest.LogCaptureFixture
) -> None:
    """In TLS 1.3 that comes after the handshake: without a greeting it would be a connection that
    is lost again and again."""
    assert leader.context is not None
    leader.context.minimum_version = ssl.TLSVersion.TLSv1_3
    follower = host("SSL", **{"ssl.keystore.location": ""})
    follower.publish()
    follower.run_until(lambda: leader.connections >= 3)

    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "it requires a certificate, and this broker has no key store" in line
