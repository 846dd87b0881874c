"""A program with one consumer in a simulation: it polls in one of several ways, commits what it
got, pauses and resumes partitions, seeks, and is cancelled or interrupted at times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from support.simulation.simulated_brokers import FOREVER, TOPICS, Event, Key
from support.simulation.simulated_surroundings import SimulatedSurroundings

from kbroker.client.consumer.collector import Kind
from kbroker.client.consumer.commits import ConsumerCommits, Offsets
from kbroker.client.consumer.consumer_settings import consumer_settings
from kbroker.client.consumer.core import Core
from kbroker.client.consumer.lanes import LaneCall
from kbroker.client.consumer.membership import ConsumerMembership
from kbroker.client.consumer.partitions import ReadPartition
from kbroker.client.errors import ClientError
from kbroker.errors import ErrorCode

if TYPE_CHECKING:
    from support.simulation.consumer_simulation import Simulation


ANOTHER_HAS_ITS_PLACE = (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID)
ARROW = ("topic", "partition", "offset", "value")


class Row(NamedTuple):
    """A record as it was returned."""

    key: Key
    offset: int
    uid: int


class Interrupt(BaseException):
    """As Ctrl-C, after records were read."""


def rows_of(found: list[Any], kind: Kind) -> list[Row]:
    """What a call of that kind has returned."""
    if kind[0] == "records":
        return [Row((one.topic, one.partition), one.offset, int(one.value)) for one in found]
    if kind[0] == "columns":
        return [
            Row((part.topic, part.partition), offset, int(value))
            for part in found
            for offset, value in zip(part.offsets, part.values, strict=True)
        ]
    return [
        Row((topic, partition), offset, int(value))
        for batch in found
        for topic, partition, offset, value in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        )
    ]


class Program:
    """paused: partitions. committing: the offsets of the last commits, however they end."""

    def __init__(self, simulation: Simulation, number: int, settings: dict[str, Any]) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.number = number
        self.instance = settings.get("group.instance.id")
        around = SimulatedSurroundings(simulation.brokers)
        around.made.on_wake = lambda: self.step_in(0.0)
        self.core = Core(consumer_settings(settings, {}), around)
        self.committing: dict[Key, int] = {}
        self.paused: dict[Key, ReadPartition] = {}
        self._commits_itself = bool(self.core.settings["enable.auto.commit"])
        self._step: Event | None = None
        self._step_at = FOREVER
        self.is_closed = False
        self.away_until = 0.0
        if self.core.commits is None:
            self.core.assign(simulation.brokers.keys)
        else:
            self._note_commits(self.core.commits)
            self.core.topics = frozenset(TOPICS)
            self.core.membership = ConsumerMembership(self.core)
            self.core.membership.listener = self
            self.core.track()
            self.core.membership.subscribe(self.core.topics)
        self.step_in(0.0)

    def _note_commits(self, commits: ConsumerCommits) -> None:
        begin = commits.commit

        def commit(offsets: Offsets, *row: Any, **more: Any) -> LaneCall:
            self.committing.update({key: one.offset for key, one in offsets.items()})
            return begin(offsets, *row, **more)

        commits.commit = commit  # type: ignore[method-assign]

    def on_partitions_revoked(self, partitions: list[Any]) -> None:
        """Before they are given up, what was returned is committed, if that is automatic."""
        if self._commits_itself:
            self.simulation.history.revoked(
                self, [(one.topic, one.partition) for one in partitions]
            )

    def on_partitions_lost(self, partitions: list[Any]) -> None:
        """Others may have them by now."""

    def step_in(self, seconds: float) -> None:
        """Go on then, if not before."""
        at = max(self.world.now + seconds, self.away_until)
        if at < self._step_at and not self.is_closed:
            if self._step is not None:
                self._step.cancel()
            self._step_at = at
            self._step = self.world.after(at - self.world.now, self._go)

    def stay_away(self, seconds: float) -> None:
        """It does not poll for a while."""
        self.away_until = self.world.now + seconds
        if self._step is not None:
            self._step.cancel()
        self._step_at = FOREVER
        self.step_in(seconds)

    def _go(self) -> None:
        self._step, self._step_at = None, FOREVER
        core, now = self.core, self.world.now
        core.inbox.take()
        core.fetcher.receive()
        rows = self._poll()
        history = self.simulation.history
        history.returned(self, rows)
        history.stepped(self.number, bool(rows))
        if rows and not self._commits_itself and self.world.random.random() < 0.4:
            self._commit()
        if rows:
            self.step_in(self.simulation.pause())
        else:
            self.step_in(min(core._due_in(now), max(core.fetcher.due_in(now), 0.001)))

    def _poll(self) -> list[Row]:
        """What has reached the program."""
        core, chance = self.core, self.world.random
        kind, collect = self._call()
        ends, is_cancelled = chance.random(), False

        def interrupted() -> list[Any]:
            if collect():
                raise Interrupt
            return []

        with core:
            try:
                found = core.poll(0.0, kind, interrupted if ends < 0.01 else collect)
            except ClientError as error:
                self.simulation.history.raised(self.number, error)
                if getattr(error, "code", None) in ANOTHER_HAS_ITS_PLACE:
                    self.world.after(0.0, self.close)
                return []
            except Interrupt:
                return []
            if ends > 0.97:
                core.collector.keep(found)  # the call was cancelled
                is_cancelled = True
        if is_cancelled:
            if not self._commits_itself and chance.random() < 0.5:
                self._commit()
            return []
        return rows_of(found, kind)

    def _call(self) -> tuple[Kind, Callable[[], list[Any]]]:
        core, limit = self.core, self.simulation.limit()
        match self.simulation.call:
            case "columns":
                kind = "columns", limit, False, False
                return kind, lambda: core.collector.columns(limit, False, False)
            case "arrow":
                kind = "arrow", limit, ARROW
                return kind, lambda: core.collector.arrow(limit, ARROW)
        return ("records", limit), lambda: core.collector.records(limit)

    # -- what else a program does

    def pause(self, key: Key, seconds: float) -> None:
        """Nothing of a partition is returned for a while, while it has it."""
        part = self.core.fetcher.parts.get(key)
        if part is None or self.is_closed:
            return
        self.simulation.brokers.disturb_partition(key, seconds)
        part.paused = self.core.fetcher.changed = True
        self.paused[key] = part

        def resume() -> None:
            if self.paused.get(key) is part:
                del self.paused[key]
            part.paused = False
            if not self.is_closed:
                self.core.fetcher.sets.resumed()
                self.step_in(0.0)

        self.world.after(seconds, resume)

    def seek(self, key: Key, offset: int, epoch: int) -> None:
        part = self.core.fetcher.parts.get(key)
        if part is not None and part.position is not None:
            part.seek(offset, epoch)
            self.core.positions.look()
            self.core.fetcher.changed = True
            self.simulation.history.sought(self, key, offset)
            self.step_in(0.0)

    def _commit(self) -> None:
        core = self.core
        if core.commits is None:
            return
        try:
            who = core.identity()
        except ClientError:
            return
        rows = core.consumed()
        tag = f"{who.member}/{who.generation}"
        offsets = {key: row._replace(metadata=tag) for key, row in rows.items()}
        history = self.simulation.history
        core.commits.commit(
            offsets,
            self.world.random.choice((2.0, 10.0)),
            lambda told, error: history.commit_ended(offsets, who, error),
        )

    def close(self) -> None:
        """Leave, without a last commit."""
        if self.is_closed:
            return
        core = self.core
        core.stop_auto_commit()
        self._commits_itself = False
        with core:
            if core.membership is not None:
                core.membership.close(0.0)
        self.is_closed = True
        core.fetcher.close(self.world.now)
