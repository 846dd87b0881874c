"""Credentials, which only the controller process has: a login asks for the one it needs."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.ipc.calls.base import CONTROLLER, NOBODY
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation


class FindCredential(Document):
    """name: of the user, or of a delegation token."""

    name: str
    mechanism: str
    is_token: bool = False


class FoundCredential(Document):
    """name, mechanism: as asked. user: whom it is for, None if there is no credential."""

    name: str
    mechanism: str
    user: str | None = None
    salt: bytes = b""
    stored_key: bytes = b""
    server_key: bytes = b""
    iterations: int = 0
    expires_ms: int | None = None


class ScramChange(NamedTuple):
    """mechanism: its number in requests. iterations: 0 deletes the credential."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


class AlterScram(Document):
    changes: list[ScramChange]
    asked_by: str = NOBODY


class UserResult(NamedTuple):
    user: str
    error: int
    message: str | None


class DescribeScram(Document):
    """users: None for all that have credentials."""

    users: list[str] | None


class ScramInfo(NamedTuple):
    mechanism: int
    iterations: int


class UserInfo(NamedTuple):
    """infos: empty if the user has no credential."""

    user: str
    infos: list[ScramInfo]


FIND_CREDENTIAL = CallOperation("find_credential", FindCredential, FoundCredential, (CONTROLLER,))
# Returns a result for each user, once.
ALTER_SCRAM = CallOperation("alter_scram", AlterScram, list[UserResult], (CONTROLLER,))
DESCRIBE_SCRAM = CallOperation("describe_scram", DescribeScram, list[UserInfo], (CONTROLLER,))
