"""Programs that write: producers that block, those of asyncio, with and without transactions."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fault.clients.handles import AsyncHandle, handle
from fault.clients.told import Leave

from kbroker.client.errors import ClientError

if TYPE_CHECKING:
    from fault.clients.program import Program

PAUSE_S = 0.03
EACH = 3  # records of each partition in a step
FLUSH_S = 35.0  # delivery.timeout.ms, and a little
CLOSE_S = 10.0
FORK_S = 30.0
REST_S = 1.0
RAISES_EVERY = 20

Row = tuple[int, int]  # partition and number


class Writer:
    """One client and what it was given. Futures may end in any thread."""

    def __init__(self, program: Program) -> None:
        self.program, self.told = program, program.told
        self._numbers: Counter[int] = Counter()
        self._open: Counter[str] = Counter()  # futures that have not ended; one key for a lock
        self._lock = threading.Lock()
        self._acked: deque[tuple[int, int, int]] = deque()
        self._failed: deque[tuple[int, int, str]] = deque()
        self._waiting: deque[tuple[list[Row], Any]] = deque()  # what send_many has returned
        self._cancelled: set[Row] = set()  # whose send was cancelled: nobody knows of them
        self._steps = 0
        self.handle = self._made()

    def _made(self) -> Any:
        program = self.program
        return handle(
            self.told, program.role.client, program.settings, program.mishap, program.chance
        )

    # -- records

    def _rows(self) -> list[Row]:
        rows = []
        for partition in range(self.program.partitions):
            for _ in range(EACH):
                rows.append((partition, self._numbers[partition]))
                self._numbers[partition] += 1
        self.told.tell("sent", rows=rows)
        return rows

    def value(self, row: Row) -> bytes:
        return b"%s:%d:%d" % (self.program.name.encode(), *row)

    def send(self, rows: list[Row]) -> None:
        """All of them, in one of the ways."""
        for partition in range(self.program.partitions):
            part = [row for row in rows if row[0] == partition]
            if self.program.role.way == "send_many":
                self._send_many(partition, part)
            elif isinstance(self.handle, AsyncHandle):
                self._send_async(self.handle, part)
            else:
                self._send_each(part)

    def _send_each(self, rows: list[Row]) -> None:
        for row in rows:
            self._count(1)
            try:
                future = self.handle.call(
                    "send", self._block_s, self.program.topic, self.value(row), partition=row[0]
                )
            except ClientError as error:
                self._end(row, error, -1)
                continue
            future.add_done_callback(partial(self._ended, row))

    def _ended(self, row: Row, future: Any) -> None:
        error = future.exception()
        self._end(row, error, -1 if error else future.result().offset)
        if self.program.mishap == "callbacks raise" and row[1] % RAISES_EVERY == 7:
            raise Leave

    def _send_async(self, handle: AsyncHandle, rows: list[Row]) -> None:
        for row in rows:
            arguments = (self.program.topic, self.value(row))
            if handle.cancels:
                # Whether it is sent nobody knows, so it counts neither as acknowledged nor as open.
                found = handle.cancelled("send", *arguments, partition=row[0])
                if found is None:
                    self._cancelled.add(row)
                else:
                    found.add_done_callback(lambda future: future.cancelled() or future.exception())
                continue
            self._count(1)
            try:
                future = handle.call("send", self._block_s, *arguments, partition=row[0])
            except ClientError as error:
                self._end(row, error, -1)
                continue
            handle.wait(self._watch(row, future))

    async def _watch(self, row: Row, future: asyncio.Future[Any]) -> None:
        future.add_done_callback(partial(self._ended, row))

    def _send_many(self, partition: int, rows: list[Row]) -> None:
        values = [self.value(row) for row in rows]
        self._count(len(rows))
        try:
            sent = self.handle.call(
                "send_many", self._block_s, self.program.topic, values, partition=partition
            )
        except ClientError as error:
            for row in rows:
                self._end(row, error, -1)
            return
        self._waiting.append((rows, sent))

    def _take_ended(self, all_of_them: bool = False) -> None:
        """What has ended of ``send_many``."""
        is_async = isinstance(self.handle, AsyncHandle)
        for _ in range(len(self._waiting)):
            rows, sent = self._waiting.popleft()
            if not all_of_them and not sent.done():
                self._waiting.append((rows, sent))
                continue
            wait = self.handle.wait if is_async else (lambda found: found)
            try:
                failed = wait(sent.exceptions() if is_async else sent.exceptions(FLUSH_S))
                runs = wait(sent.result() if is_async else sent.result(0)) if not failed else []
            except ClientError as error:
                failed, runs = dict.fromkeys(range(len(rows)), error), []
            offsets = [first + n for _, _, first, count in runs for n in range(count)]
            for place, row in enumerate(rows):
                self._end(row, failed.get(place), offsets[place] if offsets else -1)

    def _count(self, more: int) -> None:
        with self._lock:
            self._open["records"] += more

    def _end(self, row: Row, error: BaseException | None, offset: int) -> None:
        self._count(-1)
        if error is None:
            self._acked.append((*row, offset))
        else:
            self._failed.append((*row, f"{type(error).__name__}: {error}"[:500]))

    def tell_ended(self) -> None:
        self._take_ended()
        for what, rows in (("acked", self._acked), ("failed", self._failed)):
            found = [rows.popleft() for _ in range(len(rows))]
            if found:
                self.told.tell(what, rows=found)

    @property
    def _block_s(self) -> float:
        return float(self.program.settings["max_block_ms"]) / 1000

    # -- steps

    def step(self) -> None:
        """Some records of each partition; sometimes the other calls."""
        self.send(self._rows())
        self.tell_ended()
        self._steps += 1
        if self._steps % 20 == 0:
            self._look()

    def _look(self) -> None:
        calls: list[tuple[str, float, tuple[Any, ...]]] = [
            ("metrics", 0.5, ()),
            ("metrics_by_node", 0.5, ()),
            ("metrics_by_topic", 0.5, ()),
            ("client_instance_id", 1.0, (1.0,)),
            ("partitions_for", self._block_s, (self.program.topic,)),
        ]
        if self._steps % 100 == 0:
            calls.append(("flush", 0.5, (0.5,)))
        for name, limit, arguments in calls:
            try:
                self.handle.call(name, limit, *arguments)
            except ClientError:
                pass  # told

    def rest(self) -> None:
        """Wait for what was sent."""
        try:
            self.handle.call("flush", REST_S, REST_S)
        except ClientError:
            pass
        else:
            self.program.pause(REST_S)
        self.tell_ended()

    def finish(self) -> None:
        """Everything ends: tell what did not."""
        try:
            self.handle.call("flush", FLUSH_S, FLUSH_S)
        except ClientError:
            pass
        self._take_ended(all_of_them=True)
        self.close()
        self.tell_ended()
        self.told.tell("open", count=self._open["records"])
        self.handle.end()

    def close(self) -> None:
        try:
            self.handle.call("close", CLOSE_S, CLOSE_S)
        except ClientError:
            pass


class TransactionWriter(Writer):
    """Each step is a transaction; every third is aborted."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._number = 0
        self._initialized = False

    def step(self) -> None:
        if not self._initialized:
            self._initialized = self._did("init_transactions", 10.0)
            if not self._initialized:
                self.program.pause(0.1)
                return
        self._number += 1
        if isinstance(self.handle, AsyncHandle) and self.handle.cancels:
            self._transact_cancelled(self.handle)
        else:
            self._transact()
        self.tell_ended()
        self._steps += 1
        if self._steps % 20 == 0:
            self._look()

    def rest(self) -> None:
        """What it does otherwise: it waits for coordinators."""
        self.step()

    def _transact(self) -> None:
        rows: list[Row] = []
        outcome = "unknown"
        if self._did("begin_transaction"):
            rows = self._rows()
            self.send(rows)
            fits = self._steps % 5 or self._did("send_offsets_to_transaction", *self._offsets())
            if fits and self._steps % 3 != 2:
                outcome = "committed" if self._finishes("commit_transaction") else "unknown"
            if outcome != "committed":
                tried = bool(fits and self._steps % 3 != 2)
                aborted = self._finishes("abort_transaction")
                outcome = "aborted" if aborted and not tried else "unknown"
                if not aborted:
                    self._replace()
        else:
            self._replace()
        sent = [row for row in rows if row not in self._cancelled]
        self.told.tell("transaction", rows=sent, outcome=outcome)

    def _transact_cancelled(self, handle: AsyncHandle) -> None:
        """A block of ``transaction`` that is cancelled somewhere; the next one begins after it."""
        rows = self._rows()

        async def work() -> bool:
            async with handle.client.transaction() as producer:
                for row in rows:
                    sent = await producer.send(
                        self.program.topic, self.value(row), partition=row[0]
                    )
                    sent.add_done_callback(lambda future: future.cancelled() or future.exception())
            return True

        try:
            done = handle.cancelled_work("transaction", work)
        except ClientError:
            done = False  # told
        self.told.tell("transaction", rows=rows, outcome="committed" if done else "unknown")

    def _offsets(self) -> tuple[float, Any, str]:
        return self._block_s, {(self.program.topic, 0): self._steps}, self.program.group

    def _finishes(self, name: str) -> bool:
        """As Java's documents have it: an end that has timed out may be asked for again."""
        return any(self._did(name) for _ in range(3))

    def _did(self, name: str, limit_s: float | None = None, *arguments: Any) -> bool:
        try:
            self.handle.call(name, self._block_s if limit_s is None else limit_s, *arguments)
        except ClientError:
            return False
        return True

    def _replace(self) -> None:
        """A new client: this one can do no more, which no cancel is a reason for."""
        if self.program.mishap in ("one cancel", "two cancels"):
            self.told.tell("broke", error="after a cancel, the producer could do no more")
        self.close()
        self.handle.end()
        self.handle = self._made()
        self._initialized = False
        self.told.tell("replaced")


def write(program: Program) -> None:
    """Until the program is stopped."""
    writer = (TransactionWriter if program.role.is_transactional else Writer)(program)
    while program.pause(PAUSE_S):
        if program.resting:
            writer.rest()
        else:
            writer.step()
        if program.mishap_due("fork"):
            forked(program, writer.handle, [("flush", 2.0, (2.0,)), ("close", 2.0, (2.0,))])
        if program.mishap_due("program ends"):
            writer.told.tell("leaves")
            sys.exit()
    writer.finish()


def forked(program: Program, handle: Any, calls: list[tuple[str, float, Any]]) -> None:
    """These calls in a child of this process, which must end."""
    pid = os.fork()
    if pid == 0:
        _in_child(handle.client, calls)
    began = time.monotonic()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() - began > FORK_S:
            program.told.tell("hangs", call=f"{[name for name, *_ in calls]} in a fork")
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            return
        time.sleep(0.05)
    program.told.tell("forked", seconds=time.monotonic() - began)


def _in_child(client: Any, calls: list[tuple[str, float, Any]]) -> None:
    done: Callable[[int], Any] = os._exit
    for name, _, arguments in calls:
        try:
            getattr(client, name)(*arguments)
        except BaseException as error:
            print(f"in the fork: {name}: {error!r}", file=sys.stderr, flush=True)
    done(0)
