"""Decode and encode any message in any version.

The functions for one (message, version) are compiled on first use, 1 to 5 ms, and cached for the
life of the process: ``prepare`` before the fork what every worker needs. The hot Produce and Fetch
paths have codecs of their own in Cython; this one is their oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import error as StructError
from typing import Any, TypeVar

from kbroker.protocol.decoder import ELEMENTS_MAX, bounds, decoder_source
from kbroker.protocol.encoder import encoder_source, find_misfit
from kbroker.protocol.message import Message
from kbroker.protocol.primitives import Buffer, DecodeError, EncodeError

__all__ = [
    "DecodeError",
    "EncodeError",
    "allow_elements",
    "decode",
    "decode_exact",
    "decode_steps",
    "encode",
    "encode_into",
    "encode_parts",
    "encode_steps",
    "prepare",
]

M = TypeVar("M", bound=Message)
# A request may list for a partition: its topic, its number, and some data.
ELEMENTS_PER_PARTITION = 3
# Copying smaller values is faster than sending them separately.
_PART_BYTES = 4096

_decoders: dict[tuple[type[Message], int], Callable[[Buffer, int, int], tuple[Any, int]]] = {}
_encoders: dict[tuple[type[Message], int], Callable[[Any, bytearray], None]] = {}
# The same in steps.
_stepwise: dict[tuple[type[Message], int, str], Callable[..., Generator[None, None, Any]]] = {}


def decode(cls: type[M], version: int, buffer: Buffer, offset: int = 0) -> tuple[M, int]:
    """Decode one message that starts at ``offset``; returns (message, position after it).

    Fields of type records are views into ``buffer``, everything else is copied out of it. Raises
    DecodeError for any malformed input, EncodeError never; ValueError for an unknown version.
    """
    decoder = _decoders.get((cls, version)) or _compile_decoder(cls, version)
    if type(buffer) is not bytes:
        buffer = memoryview(buffer).cast("B")
    limit = len(buffer)
    if not 0 <= offset <= limit:
        raise DecodeError(f"{cls.__name__} v{version}: offset {offset} is outside {limit} bytes")
    try:
        return decoder(buffer, offset, limit)
    except (StructError, IndexError, UnicodeDecodeError) as err:
        raise _malformed(cls, version, limit, err) from err


def _malformed(cls: type[Message], version: int, limit: int, error: Exception) -> DecodeError:
    if isinstance(error, UnicodeDecodeError):
        return DecodeError(f"{cls.__name__} v{version}: a string is not UTF-8: {error}")
    return DecodeError(f"{cls.__name__} v{version}: truncated after {limit} bytes")


def decode_steps(
    cls: type[M], version: int, buffer: bytes, offset: int = 0
) -> Generator[None, None, tuple[M, int]]:
    """Like ``decode``, one part between two yields."""
    decoder = _stepwise.get((cls, version, "decode")) or _compile_steps(cls, version, "decode")
    try:
        decoded: tuple[M, int] = yield from decoder(buffer, offset, len(buffer))
        return decoded
    except (StructError, IndexError, UnicodeDecodeError) as err:
        raise _malformed(cls, version, len(buffer), err) from err


def decode_exact(cls: type[M], version: int, buffer: Buffer, offset: int = 0) -> M:
    """Decode a message that must end where ``buffer`` ends; DecodeError reports extra bytes."""
    message, end = decode(cls, version, buffer, offset)
    if end != len(buffer):
        raise DecodeError(f"{cls.__name__} v{version}: {len(buffer) - end} bytes left over")
    return message


def encode(message: Message, version: int) -> bytes:
    """Encode ``message``; see ``encode_into``."""
    out = bytearray()
    encode_into(message, version, out)
    return bytes(out)


def encode_parts(message: Message, version: int) -> list[Buffer]:
    """The encoding in pieces: large values are separate pieces and not copied.

    Joined, they are what ``encode`` returns; they must not change before. Raises as that does.
    """
    out = _Parts()
    encode_into(message, version, out)
    return [*out.before, bytes(out)]


class _Parts(bytearray):
    """before: the bytes before those in here."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Buffer] = []

    def __iadd__(self, data: Buffer) -> _Parts:  # type: ignore[misc,override]
        if len(data) < _PART_BYTES:
            super().__iadd__(data)
        else:
            self.before += [bytes(self), data]
            self.clear()
        return self


def encode_into(message: Message, version: int, out: bytearray) -> None:
    """Append the encoding of ``message`` in ``version`` to ``out``.

    Raises EncodeError if a value does not fit its type, is null if the version forbids it, or is
    set although the version has no such field and the definition does not allow to ignore it.
    ``out`` may then hold part of the message.
    """
    cls = type(message)
    encoder = _encoders.get((cls, version)) or _compile_encoder(cls, version)
    try:
        encoder(message, out)
    except (StructError, TypeError, AttributeError, UnicodeEncodeError) as err:
        reason = find_misfit(message, version) or str(err)
        raise EncodeError(f"{reason} in version {version}") from err


def encode_steps(message: Message, version: int, out: bytearray) -> Generator[None, None, None]:
    """Like ``encode_into``, one part between two yields. The message must not be changed in
    between.
    """
    cls = type(message)
    encoder = _stepwise.get((cls, version, "encode")) or _compile_steps(cls, version, "encode")
    try:
        yield from encoder(message, out)
    except (StructError, TypeError, AttributeError, UnicodeEncodeError) as err:
        reason = find_misfit(message, version) or str(err)
        raise EncodeError(f"{reason} in version {version}") from err


def allow_elements(partitions: int) -> None:
    """Accept requests about so many partitions in this process, in up to as many topics."""
    bounds.elements = max(ELEMENTS_MAX, ELEMENTS_PER_PARTITION * partitions)


def prepare(cls: type[Message], version: int) -> None:
    """Compile both functions of a message now, so that processes forked later share them."""
    if (cls, version) not in _decoders:
        _compile_decoder(cls, version)
    if (cls, version) not in _encoders:
        _compile_encoder(cls, version)


def _compile_decoder(cls: type[Message], version: int) -> Callable[..., tuple[Any, int]]:
    _require_version(cls, version)
    source, names = decoder_source(cls, version)
    exec(compile(source, f"<decoder of {cls.__name__} v{version}>", "exec"), names)
    decoder: Callable[..., tuple[Any, int]] = names["decode"]
    _decoders[cls, version] = decoder
    return decoder


def _compile_encoder(cls: type[Message], version: int) -> Callable[[Any, bytearray], None]:
    _require_version(cls, version)
    source, names = encoder_source(cls, version)
    exec(compile(source, f"<encoder of {cls.__name__} v{version}>", "exec"), names)
    encoder: Callable[[Any, bytearray], None] = names["encode"]
    _encoders[cls, version] = encoder
    return encoder


def _compile_steps(
    cls: type[Message], version: int, function: str
) -> Callable[..., Generator[None, None, Any]]:
    _require_version(cls, version)
    make = decoder_source if function == "decode" else encoder_source
    source, names = make(cls, version, in_steps=True)
    exec(compile(source, f"<{function} of {cls.__name__} v{version}>", "exec"), names)
    steps: Callable[..., Generator[None, None, Any]] = names[function]
    _stepwise[cls, version, function] = steps
    return steps


def _require_version(cls: type[Message], version: int) -> None:
    first, last = cls.VERSIONS
    if not first <= version <= last:
        raise ValueError(f"{cls.__name__} has versions {first} to {last}, not {version}")
