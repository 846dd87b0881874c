"""Which names a browser may call the HTTP port by.

A page of another site may have its name point to this machine and then read what the port serves,
as if it were its own (DNS rebinding). Its requests have its name in their Host header.
"""

from __future__ import annotations

from kbroker.hosts import LOCALHOST, is_address

# Among the names: every name is taken.
ANY = "*"


def is_own_host(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header is an address, localhost or one of these names, in lower case."""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal() or name.endswith(":"):
        name = host
    name = name.lower()
    if name in names or ANY in names or name == LOCALHOST:
        return True
    return is_address(name.removeprefix("[").removesuffix("]").partition("%")[0])


def refusal(host: str, what: str = "broker", setting: str = "console.hosts") -> str:
    """What the client of a request for another name is told. setting: that has the names."""
    shown = repr(host[:100])
    return f"this {what} is not called {shown}; add the name to {setting}, or use an address"
