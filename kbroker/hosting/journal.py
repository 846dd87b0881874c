"""What controllers have told this broker, for the next incarnation of the controller process.

A journal in the runtime directory, which is new for every run. Each change of the hosted replicas,
of the metadata and of the ISR changes without a result is one line, written before any process or
controller can learn of it. So what a controller has a response for is in the journal, and what is
not in it has no response yet: a torn last line is a request that its sender repeats.

A journal that cannot be written is removed, and one that does not fit the slots is not used: the
broker then registers anew, and is told everything.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from kbroker.cluster.control_requests import (
    KnownPartition,
    LedPartition,
    LiveBroker,
    PartitionKey,
)
from kbroker.hosting.image import HostImage
from kbroker.hosting.metadata import KnownTopic
from kbroker.hosting.replicas import HostedReplica, HostedTopic
from kbroker.hosting.slots import Slot
from kbroker.ipc.calls import WantedIsr

logger = logging.getLogger(__name__)

FILE_NAME = "hosting.journal"
# A journal is written anew when it has grown to twice what there is to say, but not below this.
REWRITE_BYTES_MIN = 1 << 20
# The image of the next incarnation is newer than any that this one publishes between two lines.
VERSIONS_SKIPPED = 1 << 20

T = TypeVar("T", KnownPartition, HostedReplica)
Rows = dict[str, list[Any]]


class File(Protocol):
    """Where a journal is kept: ``JournalFile``."""

    def read(self) -> bytes | None:
        """The content; None if there is none."""

    def replace(self, content: bytes) -> None:
        """Replace the content at once. Raises OSError."""

    def append(self, line: bytes) -> None:
        """Raises OSError."""

    def remove(self) -> None:
        """There is no journal any more. Raises OSError."""


class JournalFile:
    """A file in the runtime directory."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._fd: int | None = None

    def read(self) -> bytes | None:
        try:
            with open(self._path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def replace(self, content: bytes) -> None:
        # No sync: the journal must outlive this process, not the machine.
        new = f"{self._path}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, content)
            os.replace(new, self._path)
        except OSError:
            os.close(fd)
            raise
        self.close()
        self._fd = fd

    def append(self, line: bytes) -> None:
        assert self._fd is not None
        _write(self._fd, line)

    def remove(self) -> None:
        self.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _write(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


class JournaledSlots(Protocol):
    """What the journal needs of ``SlotAssignments``."""

    def slot(self, key: PartitionKey) -> Slot | None:
        """The slot of a partition."""


class Remembered:
    """What a journal says: the state that ``Hosting`` had."""

    def __init__(self) -> None:
        self.version = 0
        self.controller_epoch = 0
        self.broker_epoch = -1
        self.controller_id = -1
        self.brokers: dict[int, LiveBroker] = {}
        self.known: dict[str, KnownTopic] = {}
        self.hosted: dict[str, HostedTopic] = {}
        self.asked: dict[PartitionKey, WantedIsr] = {}

    def take(self, line: dict[str, Any]) -> None:
        """Add a line. Raises ValueError, KeyError or TypeError."""
        self.version = line["version"]
        self.controller_epoch, self.broker_epoch = line["epochs"]
        if "brokers" in line:
            self.controller_id, brokers = line["brokers"]
            self.brokers = {int(number): LiveBroker(*one) for number, one in brokers.items()}
        for name, (topic_id, *rows) in line.get("known", {}).items():
            known = _topic(self.known, name, topic_id, KnownTopic).partitions
            _take(known, rows, lambda number, row, name=name: KnownPartition(name, number, *row))
            if not known:
                del self.known[name]
        for name, (topic_id, *rows) in line.get("hosted", {}).items():
            hosted = _topic(self.hosted, name, topic_id, HostedTopic).replicas
            _take(hosted, rows, lambda number, row, name=name: _replica(name, number, *row))
            if not hosted:
                del self.hosted[name]
        for name, creation in line.get("creations", {}).items():
            self.hosted[name] = self.hosted[name]._replace(creation=bytes.fromhex(creation))
        for row in line.get("asked", ()):
            wanted = WantedIsr(*row)
            self.asked[wanted.key] = wanted
        for topic, number in line.get("answered", ()):
            self.asked.pop((topic, number), None)

    def fits(self, slots: JournaledSlots) -> bool:
        """Whether every replica has the slot that it is said to have."""
        return all(
            slots.slot((name, number)) == (replica.slot, replica.slot_incarnation)
            for name, topic in self.hosted.items()
            for number, replica in topic.replicas.items()
        )


def _topic(topics: dict[str, Any], name: str, topic_id: str | None, make: Any) -> Any:
    """The topic with that id; without one, the present topic."""
    present = topics.get(name)
    id_ = present.topic_id if topic_id is None and present else bytes.fromhex(topic_id or "")
    if present is None or present.topic_id != id_:
        present = topics[name] = make(id_, {})
    return present


def _take(present: dict[int, T], rows: Iterable[list[Any]], make: Callable[..., T]) -> None:
    """Set partitions; a row with nothing but a number removes one."""
    for number, *row in rows:
        if row:
            present[number] = make(number, row)
        else:
            present.pop(number, None)


def _replica(name: str, number: int, slot: int, incarnation: int, *state: Any) -> HostedReplica:
    return HostedReplica(slot, incarnation, LedPartition(name, number, *state))


def remembered(content: bytes, slots: JournaledSlots) -> Remembered | None:
    """What a journal says. None if it is not complete, or contradicts the slots."""
    state = Remembered()
    *lines, _torn = content.split(b"\n")
    try:
        for number, line in enumerate(lines):
            document = json.loads(line)
            if (number == 0) != bool(document.get("all")):
                raise ValueError(f"line {number + 1} is out of place")
            state.take(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.error("the journal of control requests is damaged: %r", error)
        return None
    if not lines:
        return None
    if not state.fits(slots):
        logger.error("the journal of control requests does not fit the slots")
        return None
    return state


class JournaledHosting(Protocol):
    """Whose state is noted: ``Hosting``."""

    broker_epoch: int
    controller_epoch: int
    image: HostImage


class Journal:
    """Notes the present state of what has changed, once it has begun."""

    def __init__(self, file: File, source: JournaledHosting) -> None:
        self._file = file
        self._source = source
        self._asked: dict[PartitionKey, WantedIsr] = {}
        self._is_kept = False
        self._bytes = self._bytes_at_first = 0

    def restore(self, slots: JournaledSlots) -> Remembered | None:
        """What the last incarnation has left, and go on from there. None if that cannot be: there
        is no journal then until ``begin``.
        """
        content = self._file.read()
        state = None if content is None else remembered(content, slots)
        if state is not None:
            assert content is not None
            whole = content[: content.rfind(b"\n") + 1]
            if self._written(lambda: self._file.replace(whole)):
                self._asked = dict(state.asked)
                self._is_kept = True
                self._bytes = len(whole)
                return state
        self._file.remove()
        return None

    def begin(self) -> None:
        """Keep the journal from now on: the processes of this broker have what the source has."""
        image = self._source.image
        known = [one.key for one in image.metadata]
        hosted = [replica.told.key for replica in image.replicas]
        document = self._document(known, hosted, brokers=True)
        document["asked"] = list(self._asked.values())
        content = _line({"all": True, **document})
        if self._written(lambda: self._file.replace(content)):
            self._is_kept = True
            self._bytes = self._bytes_at_first = len(content)

    def note(
        self,
        known: Iterable[PartitionKey] = (),
        hosted: Iterable[PartitionKey] = (),
        *,
        brokers: bool = False,
        asked: Sequence[WantedIsr] = (),
        answered: Sequence[PartitionKey] = (),
    ) -> None:
        """These have changed, and nobody knows yet. asked: proposed ISRs that are about to be sent
        to the controller. answered: those with a result.
        """
        self._asked |= {wanted.key: wanted for wanted in asked}
        for key in answered:
            self._asked.pop(key, None)
        if not self._is_kept:
            return
        if self._bytes > max(REWRITE_BYTES_MIN, 2 * self._bytes_at_first):
            self.begin()
            return
        document = self._document(known, hosted, brokers=brokers)
        if asked:
            document["asked"] = asked
        if answered:
            document["answered"] = answered
        line = _line(document)
        if self._written(lambda: self._file.append(line)):
            self._bytes += len(line)

    def _written(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            logger.error(
                "cannot write the runtime directory: %s; if the controller process dies now, this "
                "broker registers anew", error,
            )  # fmt: skip
            self._is_kept = False
            self._file.remove()
            return False
        return True

    def _document(
        self, known: Iterable[PartitionKey], hosted: Iterable[PartitionKey], *, brokers: bool
    ) -> dict[str, Any]:
        source, metadata = self._source, self._source.image.metadata
        document: dict[str, Any] = {
            "version": source.image.version,
            "epochs": [source.controller_epoch, source.broker_epoch],
        }
        if brokers:
            document["brokers"] = [metadata.controller_id, metadata.brokers]
        rows = self._known(known)
        if rows:
            document["known"] = rows
        rows = self._hosted(hosted)
        if rows:
            document["hosted"] = rows
        topics = {name: source.image.replicas.topic(name) for name in rows}
        creations = {name: one.creation.hex() for name, one in topics.items() if one is not None}
        if any(creations.values()):
            document["creations"] = creations
        return document

    def _known(self, keys: Iterable[PartitionKey]) -> Rows:
        rows: Rows = {}
        for name, number in keys:
            topic = self._source.image.metadata.topic(name)
            state = None if topic is None else topic.partitions.get(number)
            of_topic = rows.setdefault(name, [None if topic is None else topic.topic_id.hex()])
            of_topic.append([number] if state is None else [number, *state[2:]])
        return rows

    def _hosted(self, keys: Iterable[PartitionKey]) -> Rows:
        rows: Rows = {}
        for name, number in keys:
            topic = self._source.image.replicas.topic(name)
            one = None if topic is None else topic.replicas.get(number)
            of_topic = rows.setdefault(name, [None if topic is None else topic.topic_id.hex()])
            row = [number] if one is None else [number, one.slot, one.slot_incarnation]
            of_topic.append(row if one is None else [*row, *one.told[2:]])
        return rows


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"
