"""Delegation tokens, which only the controller process has, with their secrets."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.ipc.calls.base import CHANGE_MS, CONTROLLER
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation
from kbroker.security.principal import KafkaPrincipal


class CreateToken(Document):
    """lifetime_ms: 0 or less for the longest one. requester: the client."""

    owner: KafkaPrincipal
    requester: KafkaPrincipal
    renewers: list[KafkaPrincipal]
    lifetime_ms: int


class ChangeToken(Document):
    """secret: that of the token. period_ms: from now on; negative: the default, or at once."""

    principal: KafkaPrincipal
    secret: bytes
    period_ms: int


class TokenEnd(Document):
    expires_ms: int


class DescribeTokens(Document):
    """owners: those whose tokens are wanted, and of which tokens they are renewers; None: all.

    after: the id of the last token of the previous part; empty for the first part.
    """

    owners: list[KafkaPrincipal] | None
    after: str = ""


class FoundToken(NamedTuple):
    token_id: str
    owner: KafkaPrincipal
    requester: KafkaPrincipal
    renewers: list[KafkaPrincipal]
    issued_ms: int
    expires_ms: int
    max_ms: int
    secret: bytes


class FoundTokens(Document):
    """In the order of their ids. is_last: there are no more."""

    tokens: list[FoundToken]
    is_last: bool


CREATE_TOKEN = CallOperation("create_token", CreateToken, FoundToken, (CONTROLLER,), CHANGE_MS)
RENEW_TOKEN = CallOperation("renew_token", ChangeToken, TokenEnd, (CONTROLLER,), CHANGE_MS)
EXPIRE_TOKEN = CallOperation("expire_token", ChangeToken, TokenEnd, (CONTROLLER,), CHANGE_MS)
DESCRIBE_TOKENS = CallOperation("describe_tokens", DescribeTokens, FoundTokens, (CONTROLLER,))
