"""Programs that read: consumers that block and those of asyncio, with partitions of their own or as
members of a group.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fault.clients.handles import AsyncHandle, handle
from fault.clients.told import Leave
from fault.clients.writers import forked

from kbroker.client.errors import ClientError

if TYPE_CHECKING:
    from fault.clients.program import Program

POLL_S = 0.3
CALL_S = 5.0
LOOK_S = 1.0  # a longer one keeps the program from polling
CLOSE_S = 10.0
COMMIT_EVERY_S = 0.5
LOOK_EVERY_S = 0.3
REST_LOOK_S = 3.0  # a call of a second tries ten times
SLOW_S = 2.5
RAISES_EVERY = 15


class Listener:
    """Tells of each rebalance."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def on_partitions_assigned(self, partitions: list[Any]) -> None:
        self._reader.changed("assigned", partitions)

    def on_partitions_revoked(self, partitions: list[Any]) -> None:
        self._reader.changed("revoked", partitions)

    def on_partitions_lost(self, partitions: list[Any]) -> None:
        self._reader.changed("lost", partitions)


class Interceptor:
    """Raises now and then where the cell wants that."""

    def __init__(self) -> None:
        self._calls = 0

    def on_consume(self, records: list[Any]) -> list[Any]:
        self._calls += 1
        if self._calls % RAISES_EVERY == 7:
            raise Leave
        return records

    def on_commit(self, offsets: Any) -> None:
        self._calls += 1
        if self._calls % RAISES_EVERY == 7:
            raise Leave


class Reader:
    """One consumer, and the positions after what it has returned."""

    def __init__(self, program: Program) -> None:
        self.program, self.told = program, program.told
        self._next: dict[int, int] = {}
        self._looks = 0
        settings = dict(program.settings)
        if program.role.way == "poll_arrow":
            # The first call would import it: a second or two on a busy machine.
            importlib.import_module("kbroker.client.consumer.arrow_sets")
        self._raises = program.mishap == "callbacks raise"
        if self._raises:
            settings["interceptor_classes"] = [Interceptor()]
        if program.mishap == "max.poll.interval":
            settings["max_poll_interval_ms"] = 4_000
        self._commits = settings.get("enable_auto_commit") is False
        self.handle = handle(
            self.told, program.role.client, settings, program.mishap, program.chance
        )

    def begin(self) -> None:
        if self.program.role.members:
            self.handle.call("subscribe", CALL_S, [self.program.topic], listener=Listener(self))
        else:
            keys = [(self.program.topic, n) for n in range(self.program.partitions)]
            self.handle.call("assign", CALL_S, keys)
            self.told.tell("assigned", partitions=list(range(self.program.partitions)))

    def changed(self, what: str, partitions: Iterable[Any]) -> None:
        """In a rebalance. What is committed here is awaited by it."""
        numbers = [number for _, number in partitions]
        if what == "revoked" and numbers and self._commits:
            self._commit_in_rebalance(numbers)
        for number in numbers:
            self._next.pop(number, None)
        self.told.tell(what, partitions=numbers)
        if self._raises and numbers and self.program.chance.random() < 0.5:
            raise Leave

    def _commit_in_rebalance(self, numbers: list[int]) -> None:
        offsets = {
            (self.program.topic, n): self._next[n] for n in numbers if self._next.get(n) is not None
        }
        if offsets and not isinstance(self.handle, AsyncHandle):
            try:
                self.handle.call("commit_sync", CALL_S, offsets, timeout=CALL_S)
            except ClientError:
                return
            self.told.tell("committed", offsets=[(n, o) for (_, n), o in offsets.items()])

    # -- steps

    def poll(self) -> None:
        way = self.program.role.way
        try:
            if isinstance(self.handle, AsyncHandle) and self.handle.cancels:
                found = self.handle.cancelled(way, POLL_S) or []
            else:
                found = self.handle.call(way, POLL_S, POLL_S)
        except (ClientError, Leave):
            self.program.pause(POLL_S if self.program.resting else 0.05)
            return
        rows = ROWS[way](found)
        for partition, offset, _ in rows:
            self._next[partition] = offset + 1
        if rows:
            self.told.tell("returned", rows=rows)

    def commit(self) -> None:
        """All positions, which are those after what was returned. Those it was told of before the
        call: a rebalance in it would change them.
        """
        if not self._commits or not self._next:
            return
        name = "commit" if isinstance(self.handle, AsyncHandle) else "commit_sync"
        wanted = list(self._next.items())
        try:
            if isinstance(self.handle, AsyncHandle) and self.handle.cancels:
                self.handle.cancelled(name, timeout=CALL_S)
                return
            self.handle.call(name, CALL_S, timeout=CALL_S)
        except (ClientError, Leave):
            return
        self.told.tell("committed", offsets=[row for row in wanted if row[0] in self._next])

    def look(self) -> None:
        """The next one of the other calls."""
        keys = [(self.program.topic, n) for n in sorted(self._next)]
        calls = (GROUP_QUESTIONS if self.program.role.members else ()) + QUESTIONS
        name, limit, arguments = calls[self._looks % len(calls)]
        self._looks += 1
        if not keys:
            return
        try:
            self.handle.call(name, limit, *arguments(self.program.topic, keys))
        except (ClientError, Leave):
            pass  # told
        if name == "pause":
            self.look()  # resume: not after a whole second

    def max_poll(self) -> None:
        """Does not call for longer than it may."""
        self.program.pause(7.0)

    def finish(self) -> None:
        try:
            self.handle.call("close", CLOSE_S, CLOSE_S)
        except (ClientError, Leave):
            pass
        self.handle.end()


Arguments = Callable[[str, list[tuple[str, int]]], tuple[Any, ...]]
QUESTIONS: tuple[tuple[str, float, Arguments], ...] = (
    ("position", LOOK_S, lambda topic, keys: (keys[0], LOOK_S)),
    ("end_offsets", LOOK_S, lambda topic, keys: (keys, LOOK_S)),
    ("beginning_offsets", LOOK_S, lambda topic, keys: (keys, LOOK_S)),
    ("offsets_for_times", LOOK_S, lambda topic, keys: (dict.fromkeys(keys, 1), LOOK_S)),
    ("partitions_for", LOOK_S, lambda topic, keys: (topic, LOOK_S)),
    ("list_topics", LOOK_S, lambda topic, keys: (LOOK_S,)),
    ("client_instance_id", LOOK_S, lambda topic, keys: (LOOK_S,)),
    ("positions", 0.5, lambda topic, keys: ()),
    ("current_lag", 0.5, lambda topic, keys: (keys[0],)),
    ("metrics", 0.5, lambda topic, keys: ()),
    ("assignment", 0.5, lambda topic, keys: ()),
    ("subscription", 0.5, lambda topic, keys: ()),
    ("paused", 0.5, lambda topic, keys: ()),
    ("pause", 0.5, lambda topic, keys: tuple(keys)),
    ("resume", 0.5, lambda topic, keys: tuple(keys)),
)  # fmt: skip
GROUP_QUESTIONS: tuple[tuple[str, float, Arguments], ...] = (
    ("committed", LOOK_S, lambda topic, keys: (keys, LOOK_S)),
    ("group_metadata", 0.5, lambda topic, keys: ()),
)


def _records(found: Iterable[Any]) -> list[tuple[int, int, str]]:
    return [(one.partition, one.offset, one.value.decode()) for one in found]


def _columns(found: Iterable[Any]) -> list[tuple[int, int, str]]:
    return [
        (one.partition, int(offset), value.decode())
        for one in found
        for offset, value in zip(one.offsets, one.values, strict=True)
    ]


def _batches(found: Iterable[Any]) -> list[tuple[int, int, str]]:
    return [
        (row["partition"], row["offset"], row["value"].decode())
        for one in found
        for row in one.to_pylist()
    ]


# What each way of reading returns, as partition, offset and value.
ROWS = {"poll": _records, "poll_columns": _columns, "poll_arrow": _batches}


def read(program: Program) -> None:
    """Until the program is stopped."""
    reader = Reader(program)
    reader.begin()
    committed = looked = time.monotonic()
    while not program.stopped:
        if program.slow and program.chance.random() < 0.5:
            program.pause(SLOW_S)
        reader.poll()
        now = time.monotonic()
        if now > committed + COMMIT_EVERY_S:
            committed = now
            reader.commit()
        if now > looked + (REST_LOOK_S if program.resting else LOOK_EVERY_S):
            looked = now
            reader.look()
        if program.mishap_due("max.poll.interval"):
            reader.max_poll()
        if program.mishap_due("fork"):
            forked(program, reader.handle, [("poll", 1.0, (1.0,)), ("close", 2.0, (2.0,))])
        if program.mishap_due("program ends"):
            reader.told.tell("leaves")
            sys.exit()
    reader.finish()
