"""Nodes of delegation tokens, where and as Apache Kafka 2.7 has them.

Whoever changes a token creates a notification with its id. The secret of a token is not stored: it
follows from its id and the brokers' key. What any client may have written is checked: ValueError,
or KeyError for a key that is missing.
"""

from __future__ import annotations

import json
import re
from typing import Any

from kbroker.metastore.entities import sanitized
from kbroker.metastore.json_values import LONG_MAX, as_integer, as_list, as_text, load_object
from kbroker.security.delegation import DelegationToken
from kbroker.security.principal import KafkaPrincipal, parse

ROOT = "/delegation_token"
TOKENS = "/delegation_token/tokens"
CHANGES = "/delegation_token/token_changes"
CHANGE = "/delegation_token/token_changes/token_change_"  # with a number after it
# Created once per cluster, parents first.
PERSISTENT_PATHS = (ROOT, TOKENS, CHANGES)

# COMPAT: a Kafka 2.7 does not start when there is a token of another version. Version 3 differs in
# ``tokenRequester`` only, which 2.7 overlooks.
VERSION = 1
_VERSIONS_MAX = 3
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def path_of(token_id: str) -> str:
    return f"{TOKENS}/{token_id}"


def is_token_id(text: str) -> bool:
    """Whether a token can have this id, which is part of a path."""
    return _ID.fullmatch(text) is not None


def encode(token: DelegationToken) -> bytes:
    document: dict[str, Any] = {
        "version": VERSION,
        "owner": sanitized(str(token.owner)),
        "renewers": [sanitized(str(renewer)) for renewer in token.renewers],
        "issueTimestamp": token.issued_ms,
        "maxTimestamp": token.max_ms,
        "expiryTimestamp": token.expires_ms,
        "tokenId": token.token_id,
    }
    if token.requester != token.owner:
        document["tokenRequester"] = sanitized(str(token.requester))
    return json.dumps(document, separators=(",", ":")).encode()


def decode(path: str, data: bytes) -> DelegationToken:
    """The token in the node ``path``."""
    document = load_object(data)
    version = as_integer(document["version"])
    if not VERSION <= version <= _VERSIONS_MAX:
        raise ValueError(f"version {version} of a delegation token is unknown")
    token_id = as_text(document["tokenId"])
    if path != path_of(token_id) or not is_token_id(token_id):
        raise ValueError(f"the token's id is {token_id[:100]!r}")
    owner = _principal(document["owner"])
    requester = document.get("tokenRequester")
    return DelegationToken(
        token_id,
        owner,
        owner if requester is None else _principal(requester),
        tuple(map(_principal, as_list(document["renewers"]))),
        as_integer(document["issueTimestamp"], 0, LONG_MAX),
        as_integer(document["expiryTimestamp"], 0, LONG_MAX),
        as_integer(document["maxTimestamp"], 0, LONG_MAX),
    )


def _principal(value: Any) -> KafkaPrincipal:
    from urllib.parse import unquote_plus  # costs every start some milliseconds

    return parse(unquote_plus(as_text(value)))


def encode_change(token_id: str) -> bytes:
    """The notification that a token has changed."""
    return token_id.encode()


def decode_change(data: bytes) -> str:
    """The id of the token that has changed."""
    token_id = data.decode()
    if not is_token_id(token_id):
        raise ValueError(f"{token_id[:100]!r} is no id of a token")
    return token_id
