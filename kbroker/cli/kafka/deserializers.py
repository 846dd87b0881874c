"""Java's deserializers by their names: from the bytes of a field to the text that Java prints."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable

_PACKAGE = "org.apache.kafka.common.serialization."


class BadField(ValueError):
    """Bytes that a deserializer does not take."""


def _whole(size: int, kind: str) -> Callable[[bytes], str]:
    def read(data: bytes) -> str:
        if len(data) != size:
            raise BadField(f"Size of data received by {kind}Deserializer is not {size}")
        return str(int.from_bytes(data, "big", signed=True))

    return read


def _real(form: str, digits: int, kind: str) -> Callable[[bytes], str]:
    size = struct.calcsize(form)

    def read(data: bytes) -> str:
        if len(data) != size:
            raise BadField(f"Size of data received by {kind}Deserializer is not {size}")
        return java_real(struct.unpack(form, data)[0], form, digits)

    return read


def java_real(value: float, form: str = ">d", digits: int = 17) -> str:
    """``Double.toString``: the shortest text that is read back as the same number."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    exact = struct.pack(form, value)
    for precision in range(1, digits + 1):
        text = f"{value:.{precision - 1}e}"
        if struct.pack(form, float(text)) == exact:
            break
    mantissa, _, power = text.partition("e")
    exponent = int(power)
    sign = "-" if mantissa.startswith("-") else ""
    figures = mantissa.lstrip("-").replace(".", "")
    if value == 0:
        return f"{sign}0.0"
    if -3 <= exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{figures}"
    if 0 <= exponent < 7:
        figures = figures.ljust(exponent + 2, "0")
        return f"{sign}{figures[: exponent + 1]}.{figures[exponent + 1 :]}"
    return f"{sign}{figures[0]}.{figures[1:] or '0'}E{exponent}"


def _boolean(data: bytes) -> str:
    if data not in (b"\0", b"\1"):
        raise BadField(f"Unexpected byte received by BooleanDeserializer: {data[:8].hex()}")
    return "true" if data == b"\1" else "false"


def _uuid(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise BadField(f"Error parsing data into UUID: {text!r}") from error


_KNOWN: dict[str, Callable[[bytes], str]] = {
    "String": lambda data: data.decode("utf-8", "replace"),
    "Integer": _whole(4, "Integer"),
    "Long": _whole(8, "Long"),
    "Short": _whole(2, "Short"),
    "Double": _real(">d", 17, "Double"),
    "Float": _real(">f", 9, "Float"),
    "Boolean": _boolean,
    "UUID": _uuid,
}


def deserializer(name: str) -> Callable[[bytes], bytes] | None:
    """What makes the bytes to print of those of a field; None: they are printed as they are. Raises
    KeyError for a class that is not known.
    """
    short = name.removeprefix(_PACKAGE).removesuffix("Deserializer")
    if short == "ByteArray":
        return None
    read = _KNOWN[short]
    return lambda data: read(data).encode("utf-8", "replace")
