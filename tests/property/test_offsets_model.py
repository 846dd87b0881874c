"""Random commits, transactions, deletions and loads of the offsets, compared with dicts.

What a machine holds must be what the model holds after each step, and again when a new machine has
loaded the log, written as a broker could have written it: batches of any size and codec, records of
any version, other records in between. A failure prints its seed.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from support.coordinators.offsets_host import OffsetsHost, make_machine, write_segment
from support.running.seeds import seeded

from kbroker.coordinator.loader import Loader
from kbroker.coordinator.offsets.offsets import Offsets
from kbroker.coordinator.records.offsets_topic import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

pytestmark = pytest.mark.property

STEPS = 150
GROUPS = ["g", "", "größe", "x" * 300]
TOPICS = ["t", "u"]
PRODUCERS = [1, 2, 2**62]
METADATA = ["", "", "m", "ä" * 40, "y" * 1000]
OFFSETS = [0, 1, -1, 2**63 - 1, -(2**63), 12345]

Key = tuple[str, str, int]


class Held(NamedTuple):
    """A committed offset, with its metadata."""

    offset: int
    leader_epoch: int
    metadata: str
    topic_id: bytes | None
    log_offset: int


class Model:
    """The dicts, and the host whose machine must agree with them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.host = OffsetsHost()
        self.committed: dict[Key, Held] = {}
        self.pending: dict[int, dict[Key, Held]] = {}

    def key(self) -> Key:
        random = self.random
        return random.choice(GROUPS), random.choice(TOPICS), random.randrange(4)

    def commit(self) -> None:
        key, random = self.key(), self.random
        metadata, offset = random.choice(METADATA), random.choice(OFFSETS)
        version = random.randrange(11)
        epoch = random.choice([-1, 0, 9]) if version >= 6 else -1
        code = self.host.commit_offset(
            offset,
            group=key[0],
            topic=key[1],
            partition=key[2],
            metadata=metadata,
            leader_epoch=epoch,
            version=version,
            retention_time_ms=random.choice([-1, 0, 5000]) if 2 <= version <= 4 else -1,
        )
        assert code == 0
        self.committed[key] = Held(offset, epoch, metadata, None, len(self.host.log) - 1)

    def commit_in_transaction(self) -> None:
        key, random = self.key(), self.random
        metadata, offset = random.choice(METADATA), random.choice(OFFSETS)
        producer_id = random.choice(PRODUCERS)
        code = self.host.commit_in_transaction(
            offset,
            producer_id=producer_id,
            group=key[0],
            topic=key[1],
            partition=key[2],
            metadata=metadata,
        )
        assert code == 0
        held = Held(offset, -1, metadata, None, len(self.host.log) - 1)
        self.pending.setdefault(producer_id, {})[key] = held

    def end_transaction(self) -> None:
        producer_id = self.random.choice(PRODUCERS)
        commit = self.random.random() < 0.7
        self.host.append_marker(producer_id, 0, commit)
        for key, held in self.pending.pop(producer_id, {}).items():
            known = self.committed.get(key)
            if commit and (known is None or known.log_offset < held.log_offset):
                self.committed[key] = held

    def forget(self, key: Key) -> None:
        self.committed.pop(key, None)
        for producer_id, offsets in list(self.pending.items()):
            offsets.pop(key, None)
            if not offsets:
                del self.pending[producer_id]

    def delete(self) -> None:
        group, topic, partition = key = self.key()
        is_known = any(k[0] == group for k in (*self.committed, *self.pending_keys()))
        code = self.host.delete_offset(group=group, topic=topic, partition=partition)
        assert code == (0 if is_known else -69)
        self.forget(key)

    def delete_group(self) -> None:
        group = self.random.choice(GROUPS)
        self.host.execute(self.host.offsets.delete_group, group)
        for key in [k for k in (*self.committed, *self.pending_keys()) if k[0] == group]:
            self.forget(key)

    def append_foreign(self) -> None:
        """A record of any version, as written by an older or newer broker; or one of a group."""
        random = self.random
        group, topic, partition = key = self.key()
        offset, metadata = random.choice(OFFSETS), random.choice(METADATA)
        epoch, topic_id = -1, None
        kind = random.randrange(7)
        if kind == 6:
            value = GroupMetadataValue(protocol_type="", generation=1, members=[])
            self.host.append(GroupMetadataKey(group=group), value)
            return
        if kind == 5:
            self.host.append(
                LegacyOffsetCommitKey(group=group, topic=topic, partition=partition),
                LegacyOffsetCommitValue(offset=offset, metadata=metadata, commit_timestamp=1),
            )
        else:
            epoch = 5 if kind >= 3 else -1
            topic_id = b"i" * 16 if kind == 4 and random.random() < 0.5 else None
            self.host.append(
                OffsetCommitKey(group=group, topic=topic, partition=partition),
                OffsetCommitValue(
                    offset=offset,
                    leader_epoch=epoch,
                    metadata=metadata,
                    commit_timestamp=1,
                    expire_timestamp=2 if kind == 1 else -1,
                    topic_id=topic_id or bytes(16),
                ),
                version=kind,
            )
        self.committed[key] = Held(offset, epoch, metadata, topic_id, len(self.host.log) - 1)

    def pending_keys(self) -> set[Key]:
        return {key for offsets in self.pending.values() for key in offsets}

    def check(self, offsets: Offsets) -> None:
        store = offsets.store
        pending = self.pending_keys()
        assert len(store) == len(self.committed)
        assert store.pending_count == sum(map(len, self.pending.values()))
        known = {key[0] for key in (*self.committed, *pending)}
        assert sorted(offsets.group_ids()) == sorted(known)
        for group in GROUPS:
            found = {(group, topic, p): tuple(held) for topic, p, held in store.of_group(group)}
            assert found == {k: held[:4] for k, held in self.committed.items() if k[0] == group}
            assert store.pending_of(group) == {k[1:] for k in pending if k[0] == group}
            assert store.has_pending(group) == any(k[0] == group for k in pending)
            assert store.committed_of(group) == len(found)
            for key, held in found.items():
                assert store.get(*key) == held

    def check_loaded(self, directory: Path) -> None:
        """Another machine, loaded from files, has the same state and continues in the same way."""
        path = write_segment(self.random, self.host.log, directory)
        machine = make_machine(self.host)
        loader = Loader(machine, path, self.random.choice([200, 1 << 20]))
        for _ in loader.load():
            pass
        assert loader.skipped == 0
        assert loader.records == sum(entry.commit is None for entry in self.host.log)
        self.check(machine.offsets)
        for key in self.committed:
            ours = self.host.offsets.store.timestamps(*key)
            assert machine.offsets.store.timestamps(*key) == ours
        machine.close(ValueError())


@pytest.mark.parametrize("round_", range(4))
def test_offsets_are_what_the_dicts_say(tmp_path: Path, round_: int) -> None:
    random = seeded(round_)
    model = Model(random)
    steps = [
        (model.commit, 8),
        (model.commit_in_transaction, 5),
        (model.end_transaction, 2),
        (model.delete, 2),
        (model.delete_group, 1),
        (model.append_foreign, 5),
    ]
    functions, weights = zip(*steps, strict=True)
    for step in random.choices(functions, weights, k=STEPS):
        step()
        model.check(model.host.offsets)
        if random.random() < 0.1:
            model.check_loaded(tmp_path)
    model.host.reload()
    model.check(model.host.offsets)
    model.check_loaded(tmp_path)
