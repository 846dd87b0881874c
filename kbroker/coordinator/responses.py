"""A coordinator's response in the version of the request."""

from __future__ import annotations

from typing import Any

from kbroker.protocol.messages.join_group import JoinGroupResponse

NULL_PROTOCOL_VERSION = 7


def in_version(response: Any, version: int) -> Any:
    """COMPAT: up to JoinGroup 6 no protocol is an empty one, from 7 on it is null."""
    if version < NULL_PROTOCOL_VERSION and isinstance(response, JoinGroupResponse):
        response.protocol_name = response.protocol_name or ""
    return response
