"""Hosts in listeners and addresses."""

from __future__ import annotations

import pytest

from kbroker.hosts import address_here, address_text, is_address, is_loopback

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("host", "shown"),
    [("", "localhost:1"), ("0.0.0.0", "localhost:1"), ("::", "localhost:1"), ("::1", "[::1]:1"),
     ("b", "b:1")],
)  # fmt: skip
def test_address_here_is_one_a_client_can_use(host: str, shown: str) -> None:
    assert address_here(host, 1) == shown


def test_address_of_ipv6_is_in_brackets() -> None:
    assert address_text("fe80::1", 9092) == "[fe80::1]:9092"
    assert address_text("10.0.0.1", "9092") == "10.0.0.1:9092"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "::1"])
def test_loopback_is_reached_from_here_only(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "127.0.0.1.example.com", "::12", "10.0.0.127"])
def test_what_others_may_reach_is_no_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_address_is_no_name() -> None:
    assert is_address("10.0.0.1") and is_address("fe80::1")
    assert not is_address("localhost") and not is_address("10.0.0.256") and not is_address("a\0b")
