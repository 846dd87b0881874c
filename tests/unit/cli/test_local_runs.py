"""Brokers found by names in /dev/shm, where anybody may make names like theirs."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.brokers.shared_names import needs_names

from kbroker import __version__
from kbroker._ext.shared import client_figures, log_figures, partition_table, slot_names
from kbroker._ext.shared.partition_table import FOLLOWER, LEADER, ONLINE, PartitionTable
from kbroker._ext.shared.slot_names import SlotNames
from kbroker.cli.arguments import CommandFailed
from kbroker.cli.local.attached import AttachedBroker
from kbroker.cli.local.board import board, look
from kbroker.cli.local.runs import left_behind, running
from kbroker.ipc import layouts, log_dir_table, process_table
from kbroker.ipc.named_memory import INDEX, NamedMemory, path_of
from kbroker.metrics import slots

pytestmark = [pytest.mark.unit, needs_names]

SLOTS = 64
PROCESSES = ["io-0", "network-0", "supervisor-0"]


def status(**changes: Any) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "version": __version__,
        "broker_id": 7,
        "cluster_id": "c",
        "bootstrap": "127.0.0.1:9092",
        "listeners": {"PLAINTEXT": "127.0.0.1:9092"},
        "metrics": None,
        "log_dirs": ["/data"],
        "config": None,
        "settings": {},
        "processes": PROCESSES,
        "slots": SLOTS,
        **changes,
    }


class Fake:
    """The regions of a run that this process could have."""

    def __init__(self, document: Any = None) -> None:
        self.nonce = os.urandom(4).hex()
        self.memory = NamedMemory(self.nonce)
        text = json.dumps(status() if document is None else document).encode()
        self.index = self.memory.create(INDEX, process_table.region_size(len(PROCESSES)))
        self.memory.create("status", len(text))[:] = text
        self.slots = self.memory.create("partitions", partition_table.region_size(SLOTS))
        self.names = self.memory.create("slot-names", slot_names.region_size(SLOTS))
        self.memory.create("counters", slots.region_size(len(PROCESSES)))
        self.memory.create("clients", client_figures.region_size(1))
        self.memory.create("log-figures", log_figures.region_size(SLOTS, 1))
        self.memory.create("log-dirs", log_dir_table.region_size(1))
        process_table.write_head(self.index, len(PROCESSES), len(text))

    def path(self, region: str) -> str:
        return path_of(self.nonce, region)

    def found(self) -> bool:
        return any(run.identity[1] == os.stat(self.path(INDEX)).st_ino for run in running())

    def attached(self) -> AttachedBroker:
        inode = os.stat(self.path(INDEX)).st_ino
        [run] = [run for run in running() if run.identity[1] == inode]
        return AttachedBroker(run)


@pytest.fixture
def fake() -> Iterator[Fake]:
    made = Fake()
    yield made
    made.memory.remove()


def test_slots_are_read_with_their_names(fake: Fake) -> None:
    table = PartitionTable(fake.slots, SLOTS)
    names = SlotNames(fake.names)
    for slot, (topic, role) in enumerate((("a", LEADER), ("a", FOLLOWER), ("bb", LEADER))):
        names.name(slot + 3, 2, topic.encode(), slot)
        table.reset(slot + 3, state=ONLINE, role=role, slot_incarnation=2)
        table.publish(slot + 3, log_start_offset=0, log_end=(10, 0, 500 + slot))
    names.name(50, 1, b"gone", 0)  # its slot has another incarnation
    names.name(51, 1, b"freed", 0)
    names.free(51)

    topics = look(fake.attached()).topics

    assert {name: (t.partitions, t.leads, t.size) for name, t in topics.items()} == {
        "a": (2, 1, 1001), "bb": (1, 1, 502), "gone": (0, 0, 0),
    }  # fmt: skip


def test_slot_whose_owner_died_inside_a_write_is_left_out(fake: Fake) -> None:
    names = SlotNames(fake.names)
    names.name(0, 1, b"a", 0)
    PartitionTable(fake.slots, SLOTS).reset(0, state=ONLINE, slot_incarnation=1)
    start = partition_table.region_size(0)
    fake.slots[start : start + 4] = struct.pack("I", 5)

    assert look(fake.attached()).topics["a"].partitions == 0


def head(fake: Fake, cell: int, value: int) -> None:
    fake.index[cell * 8 : cell * 8 + 8] = struct.pack("q", value)


DAMAGES: dict[str, Callable[[Fake], None]] = {
    "another beginning": lambda fake: head(fake, 0, 1),
    "no processes": lambda fake: head(fake, 4, 0),
    "more processes than rows": lambda fake: head(fake, 4, 900),
    "a negative number of processes": lambda fake: head(fake, 4, -1),
    "a huge number of processes": lambda fake: head(fake, 4, 1 << 62),
    "no status": lambda fake: head(fake, 3, 0),
    "a huge status": lambda fake: head(fake, 3, 1 << 62),
    "a short status": lambda fake: head(fake, 3, 20),
    "an empty index": lambda fake: os.truncate(fake.path(INDEX), 0),
    "an empty status": lambda fake: os.truncate(fake.path("status"), 0),
    "no clients": lambda fake: os.unlink(fake.path("clients")),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_damaged_index_is_no_broker(fake: Fake, damage: str) -> None:
    assert fake.found()
    DAMAGES[damage](fake)
    assert not fake.found()


DOCUMENTS: dict[str, Any] = {
    "no object": [1, 2],
    "deep": "deep",
    "no pid": {key: value for key, value in status().items() if key != "pid"},
    "a text as pid": status(pid="1"),
    "pid 0": status(pid=0),
    "numbers as listeners": status(listeners={"A": 1}),
    "numbers as directories": status(log_dirs=[1]),
    "no settings": status(settings=None),
    "unknown processes": status(processes=["io-0", "network-0", "miner-0"]),
    "fewer processes": status(processes=["io-0"]),
    "huge slots": status(slots=1 << 40),
    "no slots": status(slots=0),
}


@pytest.mark.parametrize("name", list(DOCUMENTS))
def test_damaged_status_is_no_broker(name: str) -> None:
    made = Fake(DOCUMENTS[name])
    try:
        if name == "deep":
            text = b"[" * 100_000
            os.truncate(made.path("status"), len(text))
            with open(made.path("status"), "r+b") as file:
                file.write(text)
            head(made, 3, len(text))
        assert not made.found()
    finally:
        made.memory.remove()


@pytest.mark.parametrize("region", ["partitions", "slot-names", "counters", "clients", INDEX])
def test_region_that_shrinks_under_a_reader_is_an_error_and_no_signal(
    fake: Fake, region: str
) -> None:
    """Its owner may be another user: a mapping would end this process with SIGBUS."""
    SlotNames(fake.names).name(0, 1, b"a", 0)
    seen = fake.attached()
    look(seen)

    os.truncate(fake.path(region), 16)

    with pytest.raises(CommandFailed, match="is damaged"):
        look(seen)


def test_pipe_in_the_place_of_a_region_does_not_hang(fake: Fake) -> None:
    os.unlink(fake.path("status"))
    os.mkfifo(fake.path("status"))
    assert not fake.found()


def test_other_layout_is_refused_with_a_reason(fake: Fake) -> None:
    head(fake, 1, layouts.LAYOUT + 1)
    with pytest.raises(CommandFailed, match="of another build"):
        fake.attached()


def test_impossible_figures_are_shown_and_harm_nothing(fake: Fake) -> None:
    """Whatever is in the tables, a look ends and a board can be printed."""
    for region in ("partitions", "slot-names", "clients", "log-figures", "counters"):
        with open(fake.path(region), "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            file.write(b"\xfe" * size)
    seen = fake.attached()
    before = look(seen)

    found = board(seen, before, look(seen))

    assert json.dumps(found)


def test_dead_run_is_named_as_left_behind(fake: Fake) -> None:
    assert not any(fake.nonce in line for line in left_behind())
    os.close(fake.memory._lock_fd)  # as the kernel does when the supervisor dies
    fake.memory._lock_fd = -1

    [line] = [line for line in left_behind() if fake.nonce in line]

    assert "broker 7 on /data" in line
    assert not fake.found()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
def test_region_of_another_user_comes_after_ones_own_and_is_named() -> None:
    theirs, mine = Fake(status(pid=1)), Fake()
    try:
        for region in (INDEX, "status", "partitions", "slot-names", "counters", "clients",
                       "log-figures", "log-dirs"):  # fmt: skip
            os.chown(theirs.path(region), 65534, 65534)
        inode = os.stat(theirs.path(INDEX)).st_ino
        [run] = [run for run in running() if run.identity[1] == inode]
        assert run.user in ("nobody", "65534")
        assert not run.is_of_process()  # a stop would end whatever has that number
        os.chown(theirs.path("status"), 0, 0)
        assert not theirs.found()  # a region of somebody else among them
        assert mine.found()
    finally:
        with suppress(OSError):
            theirs.memory.remove()
        mine.memory.remove()
