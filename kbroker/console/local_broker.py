"""What the console knows of the broker that it comes with, without asking it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

# By what is measured, and of what: a point for each time, None without a figure.
Series = Mapping[tuple[str, str], list[float | None]]


class Door(NamedTuple):
    """A listener that the console may use. address: ``host:port``, as this machine reaches it.
    mechanisms: of SASL that take a password; empty for a listener without SASL. settings: those of
    a client for it. by_name: the broker must be reached by the name in its certificate.
    """

    name: str
    address: str
    mechanisms: tuple[str, ...]
    settings: Mapping[str, str]
    by_name: bool


class LagKeeper(Protocol):
    """Curves of lag in bounded memory, a point of all every 30 s."""

    def is_due(self, now_ms: int) -> bool: ...

    def maybe_add(self, lags: Iterable[tuple[tuple[str, str], int]], now_ms: int) -> bool:
        """lags: by group and topic."""
        ...

    def note(self, lags: Iterable[tuple[str, int]]) -> None:
        """What has just been found out: lags of a group, one for each topic."""
        ...

    def of(self, group: str) -> tuple[list[int], dict[str, list[int]]]:
        """Times in ms, and by topic the lag at each, -1 if unknown."""
        ...


class LocalBroker(NamedTuple):
    """doors: in the order in which they are tried. processes: their state, as ``/health`` has it.
    hosts: names, besides addresses and localhost, by which this console is called. read_only: it
    changes nothing. registry: settings of the client of a schema registry;
    None without one. history: of HOUR or DAY, and what is measured: seconds of a step, times in ms,
    series, and how many there are besides. lags: of a group, as ``LagKeeper.of``, of what this
    broker knows by itself. exact_lags: of all groups now, whose topics are led here as a whole;
    lags_elsewhere: of all groups, as the console has found them. partitions_max, offsets_max: with
    more of them, metrics of the cluster have no series of each.
    """

    broker_id: int
    version: str
    doors: tuple[Door, ...]
    listeners: tuple[tuple[str, str, str], ...]  # name, security protocol, address
    processes: Callable[[], Mapping[str, Any]]
    hosts: frozenset[str]
    read_only: bool
    registry: Mapping[str, str] | None
    lags: Callable[[str], tuple[list[int], dict[str, list[int]]]]
    exact_lags: Callable[[], Mapping[str, int]]
    lags_elsewhere: LagKeeper
    history: Callable[[str, Iterable[str]], tuple[int, list[int], Series, int]]
    partitions_max: int
    offsets_max: int
