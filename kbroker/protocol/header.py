"""The headers before every request and response, without the size that frames them.

Request header 0 has no client id (ControlledShutdown 0 only), 1 has one, 2 adds tagged fields and
goes with the flexible versions of an API. Its client id keeps the two-byte length even there, so
that any broker can read it. Response header 0 is the correlation id, 1 adds tagged fields;
ApiVersions is always answered with 0, because the client cannot know yet what the broker speaks
(KIP-511).
"""

from __future__ import annotations

import struct

from kbroker.protocol.api import ApiKey, find
from kbroker.protocol.primitives import FOREIGN_TEXT, Buffer, DecodeError, skip_tagged_fields

_FIXED = struct.Struct(">hhi")
_WITH_CLIENT_ID = struct.Struct(">hhih")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class DecodedHeader:
    """A decoded request header. ``end_offset`` is where the request's body begins."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id", "end_offset")

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        end_offset: int,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.end_offset = end_offset

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecodedHeader):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"DecodedHeader({values})"


def request_header_version(api_key: int, api_version: int) -> int:
    """Return the version of the request header that goes with a version of an API.

    Versions above those we know have the header of the last one: an ApiVersions request newer than
    this broker is read far enough to be answered. KeyError for an unknown key.
    """
    api = find(api_key)
    if api is None:
        raise KeyError(api_key)
    if api is ApiKey.CONTROLLED_SHUTDOWN and api_version == 0:
        return 0
    return 2 if api_version >= api.first_flexible else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """Return the version of the response header; KeyError for an unknown key."""
    if api_key == ApiKey.API_VERSIONS:
        return 0
    api = find(api_key)
    if api is None:
        raise KeyError(api_key)
    return 1 if api_version >= api.first_flexible else 0


def decode_request_header(buffer: Buffer, offset: int = 0) -> DecodedHeader:
    """Decode the header that starts at ``offset``.

    The version may be one kbroker does not support: the caller answers that. Raises DecodeError for
    an API key that does not exist and for malformed bytes.
    """
    limit = len(buffer)
    if not 0 <= offset <= limit - _FIXED.size:
        raise DecodeError(f"request of {limit - offset} bytes is too short for a header")
    api_key, api_version, correlation_id = _FIXED.unpack_from(buffer, offset)
    position = offset + _FIXED.size
    try:
        version = request_header_version(api_key, api_version)
    except KeyError:
        raise DecodeError(f"API key {api_key} does not exist") from None
    if api_version < 0:
        raise DecodeError(f"API version {api_version} is negative")
    client_id = None
    if version >= 1:
        client_id, position = _decode_client_id(buffer, position, limit)
    if version >= 2:
        try:
            count = buffer[position]
            position = skip_tagged_fields(buffer, position + 1, count, limit)
        except IndexError:
            raise DecodeError("request header is truncated in its tagged fields") from None
    return DecodedHeader(api_key, api_version, correlation_id, client_id, position)


def _decode_client_id(buffer: Buffer, position: int, limit: int) -> tuple[str | None, int]:
    if position + 2 > limit:
        raise DecodeError("request header is truncated before its client id")
    (length,) = _INT16.unpack_from(buffer, position)
    position += 2
    if length == -1:
        return None, position
    if length < 0 or length > limit - position:
        raise DecodeError(f"client id of {length} bytes, {limit - position} are left")
    try:
        end = position + length
        return str(buffer[position:end], "utf-8", FOREIGN_TEXT), end
    except UnicodeDecodeError as err:
        raise DecodeError(f"client id is not UTF-8: {err}") from err


def encode_request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Encode the header a client puts before its request. KeyError for an unknown key."""
    version = request_header_version(api_key, api_version)
    if version == 0:
        return _FIXED.pack(api_key, api_version, correlation_id)
    text = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(text)
    tags = b"\0" if version == 2 else b""
    return _WITH_CLIENT_ID.pack(api_key, api_version, correlation_id, length) + text + tags


def encode_response_header(correlation_id: int, api_key: int, api_version: int) -> bytes:
    """Encode the header of the response to a request with this key and version."""
    tags = b"\0" if response_header_version(api_key, api_version) else b""
    return _INT32.pack(correlation_id) + tags


def decode_response_header(
    buffer: Buffer, api_key: int, api_version: int, offset: int = 0
) -> tuple[int, int]:
    """Decode the header of a response to a request with this key and version.

    Returns (correlation id, position of the body). Raises DecodeError.
    """
    limit = len(buffer)
    if not 0 <= offset <= limit - _INT32.size:
        raise DecodeError(f"response of {limit - offset} bytes is too short for a header")
    (correlation_id,) = _INT32.unpack_from(buffer, offset)
    position = offset + _INT32.size
    if response_header_version(api_key, api_version):
        try:
            position = skip_tagged_fields(buffer, position + 1, buffer[position], limit)
        except IndexError:
            raise DecodeError("response header is truncated in its tagged fields") from None
    return correlation_id, position
