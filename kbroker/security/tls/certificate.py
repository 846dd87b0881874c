"""What is in a certificate: its subject as Java prints it, its alternative names, its dates.

The DER is read here, because the name of a principal must be exactly Java's, which depends on how
each part of the subject was encoded. OpenSSL has checked the certificate before.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import NamedTuple

# RFC 2253's keywords by object identifier; all others are printed as numbers.
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED = frozenset(',=+<>#;"\\')
_SAN = "2.5.29.17"

_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_VERSION, _EXTENSIONS = 0xA0, 0xA3
# UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString. COMPAT: Java reads
# the bytes of all of them as UTF-8.
_STRINGS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))
_INDEFINITE = 0x80
_SIZE_BYTES_MAX = 4


class MalformedCertificate(ValueError):
    """The bytes are not a certificate."""


class Element(NamedTuple):
    """An element of DER: its tag, its content, and all of its bytes."""

    tag: int
    content: bytes
    encoded: bytes


class Certificate(NamedTuple):
    """subject: as Java's X500Principal.getName prints it. names: subject alternative names, as
    encoded.
    """

    subject: str
    names: frozenset[bytes]
    not_before: datetime.datetime
    not_after: datetime.datetime


def read_certificate(der: bytes) -> Certificate:
    """Raises MalformedCertificate."""
    try:
        return _read_certificate(der)
    except (IndexError, StopIteration, ValueError) as error:
        raise MalformedCertificate(f"a malformed certificate: {error}") from error


def _read_certificate(der: bytes) -> Certificate:
    outer = next(elements(der))
    fields = list(elements(next(elements(outer.content)).content))
    if fields[0].tag == _VERSION:
        del fields[0]
    # serial number, signature, issuer, validity, subject, public key, then what is optional
    not_before, not_after = (_time(each) for each in elements(fields[3].content))
    names: frozenset[bytes] = frozenset()
    for field in fields[6:]:
        if field.tag == _EXTENSIONS:
            names = _alternative_names(next(elements(field.content)).content)
    return Certificate(name_of(fields[4].content), names, not_before, not_after)


def elements(data: bytes) -> Iterator[Element]:
    """The elements that the bytes consist of. Raises ValueError."""
    at = 0
    while at < len(data):
        start, tag, size = at, data[at], data[at + 1]
        at += 2
        if size & _INDEFINITE:
            count = size & 0x7F
            if not 0 < count <= _SIZE_BYTES_MAX:
                raise ValueError("an element of indefinite or impossible length")
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        if size > len(data) - at:
            raise ValueError(f"an element of {size} bytes where {len(data) - at} are left")
        yield Element(tag, data[at : at + size], data[start : at + size])
        at += size


def name_of(content: bytes) -> str:
    """A name, by the content of its sequence, as in RFC 2253: the last part first."""
    parts = []
    for part in elements(content):
        # A part may have several attributes: they stay in order.
        parts.append("+".join(_attribute(each.content) for each in elements(part.content)))
    return ",".join(reversed(parts))


def _attribute(content: bytes) -> str:
    kind, value = elements(content)
    identifier = _dotted(kind.content)
    keyword = _KEYWORDS.get(identifier)
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or identifier}=#{value.encoded.hex()}"
    return f"{keyword}={_escape(value.content.decode('utf-8', 'replace'))}"


def _escape(text: str) -> str:
    escaped = "".join(
        "\\" + char if char in _ESCAPED else "\\00" if char == "\0" else char for char in text
    )
    inner = escaped.strip(" \r")
    lead = len(escaped) - len(escaped.lstrip(" \r"))
    tail = len(escaped) - lead - len(inner)
    before, after = escaped[:lead], escaped[len(escaped) - tail :] if tail else ""
    return "".join(f"\\{char}" for char in before) + inner + "".join(f"\\{char}" for char in after)


def _dotted(content: bytes) -> str:
    numbers, value = [], 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _time(element: Element) -> datetime.datetime:
    text = element.content.decode("ascii")
    if element.tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif element.tag != _GENERALIZED_TIME:
        raise ValueError(f"a date of type {element.tag}")
    parsed = datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ")
    return parsed.replace(tzinfo=datetime.UTC)


def _alternative_names(content: bytes) -> frozenset[bytes]:
    for extension in elements(content):
        parts = list(elements(extension.content))
        if _dotted(parts[0].content) == _SAN:
            names = next(elements(parts[-1].content))
            return frozenset(each.encoded for each in elements(names.content))
    return frozenset()
