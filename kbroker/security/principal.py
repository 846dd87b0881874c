"""The principal of a request."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

# BOUND: cached principals of messages between processes.
KEPT_PRINCIPALS_MAX = 1_000
# BOUND: bytes of a name: half of what a string of the protocol may have, so that ACLs, tokens and
# messages between processes can have any of them.
NAME_BYTES_MAX = 16_384


class KafkaPrincipal(NamedTuple):
    """A type, ``User`` for all that Kafka has, and a name. Written ``User:alice``, as in ACLs."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    def to_wire(self) -> bytes:
        """The form between processes: empty for ANONYMOUS."""
        return b"" if self == ANONYMOUS else str(self).encode("utf-8", "surrogatepass")


# All clients on a listener without authentication.
ANONYMOUS = KafkaPrincipal("User", "ANONYMOUS")


def of_user(name: str) -> KafkaPrincipal:
    """The principal of a client that has authenticated as ``name``, which may be empty. Raises
    ValueError for names that nobody can have.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError("its name has half of a surrogate pair, which is no character") from None
    if size > NAME_BYTES_MAX:
        raise ValueError(f"its name has {size} bytes, more than {NAME_BYTES_MAX}")
    return KafkaPrincipal("User", name)


def parse(text: str) -> KafkaPrincipal:
    """The principal that ``str`` wrote; its type has no colon. Raises ValueError.

    COMPAT: a name may be empty, as in Kafka. The client of a certificate without a subject is
    ``User:``.
    """
    kind, colon, name = text.partition(":")
    if not kind or not colon:
        raise ValueError(f"a principal is written as type:name, not {text!r}")
    return KafkaPrincipal(kind, name)


@lru_cache(KEPT_PRINCIPALS_MAX)
def from_wire(data: bytes) -> KafkaPrincipal:
    """The principal that ``to_wire`` wrote. Raises ValueError."""
    return parse(data.decode("utf-8", "surrogatepass")) if data else ANONYMOUS


def by(asked_by: str) -> str:
    """The principal of a change, at the end of a log line; empty for an anonymous one."""
    return "" if asked_by == str(ANONYMOUS) else f" for {asked_by}"
