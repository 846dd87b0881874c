"""What a restarted controller process knows of what the last one was told."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from unit.hosting.test_hosting import BROKERS, CONTROLLER, IDS, Broker, known, led, stop

from kbroker.cluster.control_requests import NO_LEADER, ControlRequest, PartitionKey
from kbroker.hosting import journal as journals
from kbroker.hosting.image import Changes
from kbroker.hosting.journal import FILE_NAME, Journal, JournalFile, Remembered, remembered
from kbroker.ipc.calls import IsrState, WantedIsr
from kbroker.ipc.pending import Pending

pytestmark = pytest.mark.unit

ISR = IsrState(0, 3, [0], 4)
WANTED = WantedIsr("t", 0, 3, [0], 3)
REQUESTS: list[ControlRequest] = [
    known(3),
    led(3),
    led(3, number=1, leader=1),
    known(3, number=1, leader=1),
    led(5, topic="u"),
    known(4, sender=CONTROLLER._replace(controller_id=8, controller_epoch=6)),
    stop(5, delete=False, sender=CONTROLLER._replace(controller_epoch=7)),
    stop(5, delete=True, sender=CONTROLLER._replace(controller_epoch=7)),
]


class Run:
    """A run of a broker, with controller processes one after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / FILE_NAME
        self.broker = Broker(directory)
        self.file = JournalFile(str(directory))
        self.journal = Journal(self.file, self.broker.hosting)
        self._numbers = count()
        self.broker.hosting.note_in(self.journal)
        self.journal.begin()

    def restart(self) -> tuple[Broker, Remembered | None]:
        """What a process would find that started now."""
        directory = self.directory / f"next-{next(self._numbers)}"
        shutil.copytree(self.directory, directory, ignore=shutil.ignore_patterns("next-*"))
        broker, self.next_path = Broker(directory), directory / FILE_NAME
        with closing(JournalFile(str(directory))) as file:
            found = Journal(file, broker.hosting).restore(broker.slots)
        if found is not None:
            broker.hosting.restore(found)
        return broker, found

    def assert_kept(self) -> None:
        """The next process is what this one is."""
        after, found = self.restart()
        assert found is not None
        assert state(after) == state(self.broker)
        assert after.hosting.image.version > self.broker.hosting.image.version


def state(broker: Broker) -> Any:
    hosting = broker.hosting
    metadata, replicas = hosting.metadata, hosting.replicas
    return plain(
        [
            hosting.broker_epoch,
            hosting.controller_epoch,
            metadata.controller_id,
            metadata.brokers,
            {name: metadata.topic(name) for name in metadata.names()},
            {name: replicas.topic(name) for name in replicas.names()},
        ]
    )


def plain(found: Any) -> Any:
    """The same, whatever kind of sequence it is of."""
    if isinstance(found, dict):
        return {key: plain(value) for key, value in found.items()}
    return [plain(one) for one in found] if isinstance(found, list | tuple) else found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.file.close()


def test_state_is_restored_after_each_request(run: Run) -> None:
    run.assert_kept()
    for request in REQUESTS:
        run.broker.ask(request)
        run.assert_kept()


def test_every_kind_of_change_is_restored(run: Run) -> None:
    for request in REQUESTS:
        run.broker.ask(request)
    run.broker.ask(led(8, sender=CONTROLLER._replace(controller_epoch=7)))
    run.broker.hosting.change_isr({("t", 0): IsrState(0, 8, [0], 9)})
    run.broker.hosting.registered(101, 9)
    run.assert_kept()
    after, _ = run.restart()
    replica = after.hosting.replicas.replica(("t", 0))
    assert replica is not None and (replica.told.isr, replica.told.partition_epoch) == ([0], 9)
    assert after.role(("u", 0)) == (0, 5)
    assert (after.hosting.broker_epoch, after.hosting.controller_epoch) == (101, 9)


def test_change_is_noted_before_any_process_or_controller_learns_of_it(run: Run) -> None:
    seen = []

    def publish(changes: Changes = Changes()) -> Pending[dict[str, int]]:
        run.assert_kept()
        seen.append(changes)
        told: Pending[dict[str, int]] = Pending()
        told.resolve({})
        return told

    run.broker.processes.publish = publish  # type: ignore[method-assign]
    for request in REQUESTS:
        run.broker.ask(request)
        run.assert_kept()
    assert len(seen) >= len(REQUESTS)


def test_replica_whose_log_is_not_deleted_yet_is_restored(run: Run) -> None:
    """Its controller repeats the order, which then finds something to delete."""
    run.broker.ask(led(3))
    run.broker.processes.orders = []
    outcome = run.broker.hosting.take(stop(4, delete=True))
    assert not outcome.done
    after, found = run.restart()
    assert found is not None and after.role() == (0, 3)
    after.ask(stop(4, delete=True))
    assert after.role() is None


def test_stopped_replica_is_restored_without_a_leader(run: Run) -> None:
    run.broker.ask(led(3))
    run.broker.ask(stop(4, delete=False))
    after, _ = run.restart()
    assert after.role() == (NO_LEADER, 3)


def test_isr_change_without_a_result_is_asked_again(run: Run) -> None:
    run.broker.ask(led(3))
    run.journal.note(asked=[WANTED, WANTED._replace(topic="u")])
    run.broker.hosting.change_isr({("u", 0): None})
    _, found = run.restart()
    assert found is not None and found.asked == {("t", 0): WANTED}
    run.broker.hosting.change_isr({("t", 0): ISR})
    _, found = run.restart()
    assert found is not None and found.asked == {}


def test_torn_last_line_was_seen_by_nobody(run: Run) -> None:
    run.broker.ask(led(3))
    before = run.path.read_bytes()
    run.broker.ask(led(4))
    whole = run.path.read_bytes()
    for end in range(len(before), len(whole)):
        run.path.write_bytes(whole[:end])
        after, found = run.restart()
        assert found is not None and after.role() == (0, 3)
        assert run.next_path.read_bytes() == before


def test_restored_journal_is_continued(run: Run) -> None:
    run.broker.ask(led(3))
    heir = Broker(run.directory)
    journal = Journal(JournalFile(str(run.directory)), heir.hosting)
    found = journal.restore(heir.slots)
    assert found is not None
    heir.hosting.restore(found)
    heir.hosting.note_in(journal)
    heir.ask(led(4))
    run.broker = heir
    run.assert_kept()


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data.replace(b'"epochs"', b'"epoch"', 1),
        lambda data: data[1:],
        lambda data: data[data.index(b"\n") + 1 :],
        lambda data: data + b"[]\n",
        lambda data: data + data[: data.index(b"\n") + 1],
        lambda data: data.replace(b'"hosted":{"t":[', b'"hosted":{"t":[0,', 1),
        lambda data: data.replace(b"[0,0,1,", b"[0,0,2,", 1),  # another incarnation of its slot
        lambda data: b"",
    ],
)
def test_damaged_or_contradictory_journal_is_not_used(run: Run, harm: Any) -> None:
    run.broker.ask(known(3))
    run.broker.ask(led(3))
    data = run.path.read_bytes()
    assert harm(data) != data
    run.path.write_bytes(harm(data))
    _, found = run.restart()
    assert found is None
    assert not run.next_path.exists(), "it must not be used by the next process, either"


def test_journal_begins_when_it_is_told_to(tmp_path: Path) -> None:
    """Until then the other processes may have more than this one."""
    broker = Broker(tmp_path)
    journal = Journal(JournalFile(str(tmp_path)), broker.hosting)
    assert journal.restore(broker.slots) is None
    broker.hosting.note_in(journal)
    broker.ask(led(3))
    assert not (tmp_path / FILE_NAME).exists()
    journal.begin()
    assert (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize("calls", ["append", "replace"])
def test_journal_that_cannot_be_written_is_removed(
    run: Run, calls: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run.broker.ask(led(3))
    if calls == "replace":
        monkeypatch.setattr(journals, "REWRITE_BYTES_MIN", 0)
    monkeypatch.setattr(JournalFile, calls, full)
    run.broker.ask(led(4))
    run.broker.ask(led(5))
    assert run.broker.role() == (0, 5)
    assert not run.path.exists()
    assert caplog.text.count("No space left") == 1
    monkeypatch.undo()
    assert run.restart()[1] is None


def test_journal_does_not_grow_for_ever(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "REWRITE_BYTES_MIN", 1_000)
    run.journal.note(asked=[WANTED])
    sizes = []
    for epoch in range(3, 200):
        run.broker.ask(led(epoch))
        run.broker.ask(known(epoch))
        sizes.append(run.path.stat().st_size)
        run.assert_kept()
    assert max(sizes) < 3_000
    _, found = run.restart()
    assert found is not None and found.asked == {WANTED.key: WANTED}


def test_topic_of_another_id_replaces_the_one_before(run: Run) -> None:
    run.broker.ask(known(3))
    run.broker.ask(known(3, number=1))
    recreated = known(0)._replace(topic_ids={**IDS, "t": b"n" * 16})
    run.broker.ask(recreated)
    run.assert_kept()
    after, _ = run.restart()
    topic = after.hosting.metadata.topic("t")
    assert topic is not None and list(topic.partitions) == [0]
    assert after.hosting.metadata.brokers == BROKERS


def test_content_without_a_line_is_nothing() -> None:
    class Slots:
        def slot(self, key: PartitionKey) -> tuple[int, int] | None:
            return None

    assert remembered(b"", Slots()) is None
    assert remembered(b'{"all":true', Slots()) is None


def test_creation_of_a_topic_is_restored(run: Run) -> None:
    """Without it, a topic that is created again would get the log of the last one."""
    run.broker.ask(led(1)._replace(creations={"t": b"c" * 16}))
    run.restart()
    assert run.broker.hosting.creation("t") == b"c" * 16
