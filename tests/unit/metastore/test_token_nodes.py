"""The nodes of delegation tokens are those of Apache Kafka 2.7."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbroker.metastore import token_nodes
from kbroker.security.delegation import DelegationToken
from kbroker.security.principal import KafkaPrincipal

pytestmark = pytest.mark.unit

ALICE, BOB = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "CN=bob, O=x+*")
TOKEN = DelegationToken("K1a_-bcdefghijklmnopqr", ALICE, ALICE, (BOB,), 10, 20, 30)
DOCUMENT = {
    "version": 1,
    "owner": "User%3Aalice",
    "renewers": ["User%3ACN%3Dbob%2C%20O%3Dx%2B%2A"],
    "issueTimestamp": 10,
    "maxTimestamp": 30,
    "expiryTimestamp": 20,
    "tokenId": "K1a_-bcdefghijklmnopqr",
}
PATH = "/delegation_token/tokens/K1a_-bcdefghijklmnopqr"


def test_token_of_a_node_is_kafkas_document() -> None:
    assert token_nodes.path_of(TOKEN.token_id) == PATH
    assert json.loads(token_nodes.encode(TOKEN)) == DOCUMENT
    assert token_nodes.decode(PATH, token_nodes.encode(TOKEN)) == TOKEN


def test_token_for_another_owner_is_readable_by_kafka_2_7() -> None:
    """Its broker does not start with a document of version 3, and overlooks keys."""
    token = TOKEN._replace(requester=BOB)

    document = json.loads(token_nodes.encode(token))

    assert document == DOCUMENT | {"tokenRequester": "User%3ACN%3Dbob%2C%20O%3Dx%2B%2A"}
    assert token_nodes.decode(PATH, token_nodes.encode(token)) == token


def test_token_of_a_newer_kafka_is_read() -> None:
    document = DOCUMENT | {"version": 3, "tokenRequester": "User%3Acarol"}

    found = token_nodes.decode(PATH, json.dumps(document).encode())

    assert found == TOKEN._replace(requester=KafkaPrincipal("User", "carol"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 4),
        ("version", 0),
        ("owner", "alice"),
        ("owner", None),
        ("renewers", "User%3Abob"),
        ("renewers", [1]),
        ("issueTimestamp", -1),
        ("maxTimestamp", 1 << 63),
        ("expiryTimestamp", "soon"),
        ("tokenId", "another"),
        ("tokenRequester", 7),
    ],
)
def test_node_that_is_no_token_is_rejected(key: str, value: Any) -> None:
    with pytest.raises(ValueError):
        token_nodes.decode(PATH, json.dumps(DOCUMENT | {key: value}).encode())


@pytest.mark.parametrize("key", DOCUMENT)
def test_node_without_a_key_is_rejected(key: str) -> None:
    document = {name: value for name, value in DOCUMENT.items() if name != key}

    with pytest.raises(KeyError):
        token_nodes.decode(PATH, json.dumps(document).encode())


def test_notification_is_the_id() -> None:
    assert token_nodes.encode_change("K1a_-b") == b"K1a_-b"
    assert token_nodes.decode_change(b"K1a_-b") == "K1a_-b"
    for data in (b"", b"a/b", b"..", b"\xff", b"x" * 65):
        with pytest.raises(ValueError):
            token_nodes.decode_change(data)


def test_paths_are_kafkas() -> None:
    assert token_nodes.PERSISTENT_PATHS == (
        "/delegation_token", "/delegation_token/tokens", "/delegation_token/token_changes",
    )  # fmt: skip
    assert token_nodes.CHANGE == "/delegation_token/token_changes/token_change_"
