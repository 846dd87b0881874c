"""Which of the brokers on this machine a command means: the only one, or one named by its process
or address.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kbroker.cli.arguments import CommandFailed, Usage
from kbroker.cli.local.runs import Run, left_behind, of_process, running
from kbroker.hosts import LOCALHOST, LOOPBACK, address_text
from kbroker.wording import shown

if TYPE_CHECKING:
    from kbroker.cli.local.attached import AttachedBroker

NO_BROKER = (
    "no broker of this user runs on this machine; another user's can be seen by root, and where "
    "shared.memory.mode or shared.memory.group allow it"
)


class _Found(NamedTuple):
    """addresses: (host, port), with ``localhost`` for all names of this machine."""

    run: Run
    text: str
    addresses: frozenset[tuple[str, int]]


def chosen_broker(options: argparse.Namespace) -> AttachedBroker:
    """The broker that the arguments of ``add_choice`` name. Raises Usage, CommandFailed."""
    from kbroker.cli.local.attached import AttachedBroker

    return AttachedBroker(chosen_run(options))


def chosen_run(options: argparse.Namespace) -> Run:
    """That broker, which may be of another version. Raises Usage, CommandFailed."""
    if options.pid is not None:
        return of_process(options.pid)
    brokers = [_found(run) for run in running()]
    if not brokers:
        raise CommandFailed("\n".join((NO_BROKER, *left_behind())))
    if options.address is None:
        if len(brokers) > 1:
            raise Usage(
                f"several brokers run here; choose one with --pid or --address: {_listed(brokers)}"
            )
        return brokers[0].run
    meant = [each for each in brokers if _listens(each, options.address)]
    if not meant:
        raise CommandFailed(
            f"no broker here has the address {_text(options.address)}: {_listed(brokers)}"
        )
    if len(meant) > 1:
        raise Usage(
            f"several brokers here have the address {_text(options.address)}; choose one with "
            f"--pid: {_listed(meant)}"
        )
    return meant[0].run


def _listed(brokers: Iterable[_Found]) -> str:
    return "; ".join(each.text for each in brokers)


def _listens(broker: _Found, address: tuple[str, int]) -> bool:
    host, port = address
    return (host, port) in broker.addresses or (
        not host and any(port == each for _, each in broker.addresses)
    )


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return address_text(host, port) if host else str(port)


def parsed_address(text: str) -> tuple[str, int]:
    """``host:port``, or a port alone, with an empty host. Raises ArgumentTypeError."""
    host, _, port = text.rpartition("://")[2].rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is no address, such as localhost:9092")
    return _host(host), int(port)


def _host(text: str) -> str:
    name = text.strip("[]").lower()
    return LOCALHOST if name in (*LOOPBACK, socket.gethostname().lower()) else name


def _found(run: Run) -> _Found:
    status = run.status
    listening = list(status["listeners"].values())
    advertised = str(status["settings"].get("advertised.listeners") or "")
    addresses = set()
    for text in (*listening, *advertised.split(",")):
        try:
            addresses.add(parsed_address(text.strip()))
        except argparse.ArgumentTypeError:
            continue
    of_user = (f"of user {run.user}",) if run.user else ()
    words = [str(run.pid), *listening, *status["log_dirs"], *of_user]
    return _Found(run, shown(" ".join(words)), frozenset(addresses))
