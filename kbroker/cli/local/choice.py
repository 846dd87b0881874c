"""Which of the brokers on this machine a command means: the only one, or one named by its process
or address.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.cli.arguments import Failed, Usage
from kbroker.cli.local.attached import AttachedBroker, broker_pids, runtime_dir_of
from kbroker.supervisor.runtime_dir import STATUS_NAME

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class _Found(NamedTuple):
    """addresses: (host, port), with ``localhost`` for all names of this machine."""

    pid: int
    text: str
    addresses: frozenset[tuple[str, int]]


def chosen_broker(found: argparse.Namespace) -> AttachedBroker:
    """The broker that the arguments of ``add_choice`` name. Raises Usage, Failed."""
    return AttachedBroker(chosen_pid(found))


def chosen_pid(found: argparse.Namespace) -> int:
    """The supervisor of that broker, which may be of another version. Raises Usage, Failed."""
    if found.pid is not None:
        return int(found.pid)
    brokers = [_found(pid) for pid in broker_pids()]
    if not brokers:
        raise Failed(
            "no broker of this user runs on this machine; another user's can be seen by root"
        )
    if found.address is None:
        if len(brokers) > 1:
            raise Usage(
                f"several brokers run here; choose one with --pid or --address: {_listed(brokers)}"
            )
        return brokers[0].pid
    meant = [each for each in brokers if _listens(each, found.address)]
    if not meant:
        raise Failed(f"no broker here has the address {_text(found.address)}: {_listed(brokers)}")
    if len(meant) > 1:
        raise Usage(
            f"several brokers here have the address {_text(found.address)}; choose one with "
            f"--pid: {_listed(meant)}"
        )
    return meant[0].pid


def _listed(brokers: Iterable[_Found]) -> str:
    return "; ".join(each.text for each in brokers)


def _listens(broker: _Found, address: tuple[str, int]) -> bool:
    host, port = address
    return (host, port) in broker.addresses or (
        not host and any(port == each for _, each in broker.addresses)
    )


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}".lstrip(":")


def parsed_address(text: str) -> tuple[str, int]:
    """``host:port``, or a port alone, with an empty host. Raises ArgumentTypeError."""
    host, _, port = text.rpartition("://")[2].rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is no address, such as localhost:9092")
    return _host(host), int(port)


def _host(text: str) -> str:
    name = text.strip("[]").lower()
    return _LOOPBACK[0] if name in (*_LOOPBACK, socket.gethostname().lower()) else name


def _found(pid: int) -> _Found:
    status = _status(pid)
    shown = list(status.get("listeners", {}).values())
    advertised = status.get("settings", {}).get("advertised.listeners") or ""
    addresses = set()
    for text in (*shown, *advertised.split(",")):
        try:
            addresses.add(parsed_address(text.strip()))
        except argparse.ArgumentTypeError:
            continue
    words = [str(pid), *shown, *status.get("log_dirs", ())]
    return _Found(pid, " ".join(words), frozenset(addresses))


def _status(pid: int) -> Mapping[str, Any]:
    """What the supervisor has written into ``broker.json``; nothing if it cannot be read."""
    try:
        with open(os.path.join(runtime_dir_of(pid), STATUS_NAME), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, KeyError, ValueError):
        return {}  # it is about to end
    return found if isinstance(found, dict) else {}
