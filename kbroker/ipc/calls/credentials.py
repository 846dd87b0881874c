"""Credentials, which only the controller process has: a login asks for the one it needs."""

from __future__ import annotations

from kbroker.ipc.calls.base import CONTROLLER
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import Operation


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


FIND_CREDENTIAL = Operation("find_credential", FindCredential, FoundCredential, (CONTROLLER,))
