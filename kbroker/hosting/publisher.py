"""Publishes image changes to the processes of this broker: io workers first, then the rest.

Changes are published in rounds. What changes during a round is sent with the next one, as it is by
then. So receivers see the states of every topic in order, and a burst of changes costs few
messages. A process that restarts during a round misses nothing: its ``hello`` gets everything.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.cluster.image import NO_SLOT
from kbroker.errors import WireError
from kbroker.hosting.image import Changes, HostImage, combined
from kbroker.ipc import calls
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address, ProcessKind, ProcessTable
from kbroker.ipc.rpc import Rpc

logger = logging.getLogger(__name__)

# How long a process may take for an image without logs to open.
OTHER_TIMEOUT_MS = 10_000
RETRY_MS = 200
NOTHING = Changes()

Errors = dict[str, int]  # by ``topic-partition``


class Publisher:
    """Owns the subscribers, and the changes not sent to them yet."""

    def __init__(self, rpc: Rpc, processes: ProcessTable, image: HostImage) -> None:
        self._rpc = rpc
        self._processes = processes
        self._image = image
        self._subscribers: dict[Address, int] = {}
        self._changes: list[Changes] = []
        self._waiting: list[Pending[Errors]] = []
        self._running = False

    def subscribe(self, address: Address) -> None:
        """Send changes to the current incarnation of a process from now on."""
        self._subscribers[address] = self._processes.incarnation(address)

    def publish(self, changes: Changes = NOTHING) -> Pending[Errors]:
        """Publish the current state of what has changed; resolves once every process has it, with
        the codes of partitions that io workers cannot serve.

        Without changes it resolves when all earlier changes are published.
        """
        self._changes.append(changes)
        done: Pending[Errors] = Pending()
        self._waiting.append(done)
        if not self._running:
            self._running = True
            run(self._rounds()).then(_raise_error)
        return done

    async def _rounds(self) -> None:
        while self._waiting:
            changes, self._changes = combined(self._changes), []
            waiting, self._waiting = self._waiting, []
            errors: Errors = {}
            for io_workers in (True, False):
                delta = self._image.delta(changes, io_workers)
                if delta is not None:
                    await self._tell(self._living(io_workers), delta, errors)
            for done in waiting:
                done.resolve(errors)
        self._running = False

    async def stop_replicas(self, replicas: Sequence[calls.StoppedReplica]) -> None:
        """Delete the logs of these replicas; returns when every owner has deleted its logs.

        Nothing else deletes a log, whatever the image says. An io worker that restarts gets the
        topics again with its snapshot, while they are in it, and has to delete the logs again: only
        the reply of its current incarnation counts. A replica without a slot may be on disk: every
        io worker looks for it.
        """
        stopped: dict[Address, int] = {}
        io_workers = self._processes.of_kind(ProcessKind.IO_WORKER)
        by_owner: dict[Address, list[calls.StoppedReplica]] = {}
        for replica in replicas:
            owner = io_workers[replica.slot % len(io_workers)]
            for address in io_workers if replica.slot == NO_SLOT else [owner]:
                by_owner.setdefault(address, []).append(replica)
        while True:
            left = [
                address
                for address in by_owner
                if stopped.get(address) != self._processes.incarnation(address)
            ]
            if not left:
                return
            # A process that is not ready may still open logs of an older snapshot. A restart
            # changes the state before the incarnation, so the two are read in reverse order.
            present = {
                address: incarnation
                for address in left
                if self._subscribers.get(address)
                == (incarnation := self._processes.incarnation(address))
                and self._processes.is_ready(address)
            }
            took = await self._order({address: by_owner[address] for address in present})
            stopped |= {address: present[address] for address in took}
            if len(took) < len(left):
                await self._rpc.sleep(RETRY_MS)

    async def _order(
        self, by_owner: Mapping[Address, Sequence[calls.StoppedReplica]]
    ) -> set[Address]:
        """Send each io worker its deletions and wait; returns those that have completed them."""
        orders = [
            (address, self._rpc.call(address, calls.STOP_REPLICAS, calls.StopReplicas(list(some))))
            for address, some in by_owner.items()
        ]
        done = set()
        for address, order in orders:
            try:
                await order
            except WireError as error:
                logger.warning("%s did not delete logs: %s", address.title, error)
            else:
                done.add(address)
        return done

    def take_over(self) -> None:
        """Send the whole image to running processes that have not said hello to this controller.

        They have the image of the previous one; the exporter asks by itself. Called periodically: a
        process that was starting when this controller started was not serving yet, and says hello
        only once.
        """
        new = [
            address
            for address in self._processes.addresses
            if address.kind in calls.IMAGE.served_by
            and address.kind != ProcessKind.EXPORTER
            and self._processes.is_ready(address)
            and self._subscribers.get(address) != self._processes.incarnation(address)
        ]
        for address in new:
            self.subscribe(address)
        for io_workers in (True, False):
            some = [one for one in new if (one.kind == ProcessKind.IO_WORKER) == io_workers]
            if some:
                snapshot = self._image.snapshot(io_workers)
                run(self._tell(some, snapshot, {})).then(_raise_error)

    def _living(self, io_workers: bool) -> list[Address]:
        return [
            address
            for address, incarnation in self._subscribers.items()
            if (address.kind == ProcessKind.IO_WORKER) == io_workers
            and self._processes.incarnation(address) == incarnation
        ]

    async def _tell(
        self, addresses: list[Address], delta: calls.ImageDocument, errors: Errors
    ) -> None:
        """Send an image to processes, which are io workers or others, and wait; adds the codes of
        partitions not served. Nobody waits for the exporter, which serves no client.
        """
        opens_logs = any(address.kind == ProcessKind.IO_WORKER for address in addresses)
        timeout_ms = None if opens_logs else OTHER_TIMEOUT_MS
        calls_made: dict[Address, Pending[calls.ImageTaken]] = {}
        for with_topics in (True, False):
            some = [one for one in addresses if gets_topics(one) == with_topics]
            image = delta if with_topics else without_topics(delta)
            if some and len(image) > 1:
                change = calls.ImageChange(image)
                each = self._rpc.call_each(some, calls.IMAGE, change, timeout_ms)
                calls_made |= zip(some, each, strict=True)
        for address, call in calls_made.items():
            if address.kind == ProcessKind.EXPORTER:
                continue
            try:
                taken = await call
            except WireError as error:
                # The process restarts and says hello, or it is stuck and the supervisor restarts
                # it.
                logger.warning(
                    "%s did not apply image %d: %s", address.title, delta["version"], error
                )
                continue
            for partition, code in taken.errors.items():
                logger.error("%s: %s is not available, error %d", address.title, partition, code)
            errors |= taken.errors


def _raise_error(outcome: Pending[Any]) -> None:
    if outcome.error is not None:
        raise outcome.error


def gets_topics(address: Address) -> bool:
    """Acceptors have a use for settings and quotas alone. With 15,500 partitions each image took an
    acceptor 0.3 s to read and drop.
    """
    return address.kind != ProcessKind.ACCEPTOR


def without_topics(image: calls.ImageDocument) -> calls.ImageDocument:
    """The rest of an image."""
    rest = image.copy()
    rest.pop("topics", None)
    return rest
