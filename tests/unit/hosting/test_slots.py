"""Slots: balanced over the io workers, never assigned twice at once, kept across controllers."""

import errno
import os
import random

import pytest

from kbroker.hosting.slots import JOURNAL_NAME, NoFreeSlot, SlotAllocator, SlotAssignments

pytestmark = pytest.mark.unit


def test_slots_are_spread_over_the_workers():
    slots = SlotAllocator(100, 3).take(10)
    owners = [number % 3 for number, _ in slots]
    assert sorted(owners.count(worker) for worker in range(3)) == [3, 3, 4]
    assert {incarnation for _, incarnation in slots} == {1}


def test_released_slot_comes_back_with_the_next_incarnation():
    allocator = SlotAllocator(2, 1)
    (first, _), _ = allocator.take(2)
    allocator.release(first)
    assert allocator.take(1) == [(first, 2)]


def test_slot_is_taken_back_without_a_look_at_the_others():
    """Deleting 20,000 partitions blocked the controller for more than a second."""
    compared = []

    class Number(int):
        __hash__ = int.__hash__

        def __eq__(self, other):
            compared.append(other)
            return int(self) == other

    allocator = SlotAllocator(200, 2)
    taken = [number for number, _ in allocator.take(200)]

    for number in taken:
        allocator.release(Number(number))

    assert allocator.free_count == 200
    assert len(compared) <= 200
    with pytest.raises(AssertionError):
        allocator.release(taken[0])


def test_taking_too_many_takes_none():
    allocator = SlotAllocator(5, 2)
    allocator.take(3)
    with pytest.raises(NoFreeSlot, match="room for 5 partitions, of which 2 are free"):
        allocator.take(3)
    assert len(allocator.take(2)) == 2


@pytest.mark.parametrize("seed", range(4))
def test_random_use_keeps_slots_apart_and_balanced(tmp_path, seed):
    """Compared with a plain dict; reopened at random, as after a killed controller."""
    choose = random.Random(seed)
    capacity, workers = 40, choose.randint(1, 4)
    assignments = SlotAssignments(str(tmp_path), capacity, workers)
    model, highest = {}, {}
    for step in range(300):
        action = choose.random()
        if action < 0.1:
            assignments.close()
            assignments = SlotAssignments(str(tmp_path), capacity, workers)
        elif action < 0.65:
            topic = f"t{choose.randrange(12)}"
            wanted = list(range(choose.randint(1, 6)))
            known = model.get(topic, {})
            missing = [p for p in wanted if p not in known]
            if len(missing) > capacity - sum(map(len, model.values())):
                with pytest.raises(NoFreeSlot):
                    assignments.assign(topic, wanted)
                continue
            given = assignments.assign(topic, wanted)
            assert {p: given[p] for p in wanted if p in known} == {
                p: known[p] for p in wanted if p in known
            }
            for partition in missing:
                number, incarnation = given[partition]
                assert incarnation == highest.get(number, 0) + 1, (seed, step)
                highest[number] = incarnation
                model.setdefault(topic, {})[partition] = given[partition]
        elif model:
            topic = choose.choice(sorted(model))
            assignments.release(topic)
            del model[topic]
        taken = [number for slots in model.values() for number, _ in slots.values()]
        assert len(set(taken)) == len(taken)
        assert all(0 <= number < capacity for number in taken)
        assert assignments.free_count == capacity - len(taken)
        assert sorted(assignments.topics()) == sorted(model)
    assignments.close()


def test_fresh_assignment_is_balanced_after_reopening(tmp_path):
    assignments = SlotAssignments(str(tmp_path), 100, 2)
    assignments.assign("a", list(range(7)))
    assignments.close()
    assignments = SlotAssignments(str(tmp_path), 100, 2)
    slots = assignments.assign("a", list(range(10)))
    owners = [number % 2 for number, _ in slots.values()]
    assert owners.count(0) == owners.count(1) == 5
    assignments.close()


def test_torn_last_line_is_cut(tmp_path):
    assignments = SlotAssignments(str(tmp_path), 10, 1)
    kept = assignments.assign("a", [0])
    assignments.assign("b", [0])
    assignments.close()
    path = tmp_path / JOURNAL_NAME
    path.write_bytes(path.read_bytes()[:-5])
    assignments = SlotAssignments(str(tmp_path), 10, 1)
    assert list(assignments.topics()) == ["a"]
    assert assignments.assign("a", [0]) == kept
    assert assignments.assign("c", [0]) == {0: (1, 1)}
    assignments.close()
    assert SlotAssignments(str(tmp_path), 10, 1).assign("c", [0]) == {0: (1, 1)}


class FullFile:
    """A file on a disk with room for a few bytes."""

    def __init__(self, file, room):
        self._file = file
        self._room = room

    def write(self, data):
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._file.write(data[: self._room])
        self._room -= written
        return written

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize("room", [0, 10])
def test_full_disk_changes_nothing_and_leaves_no_half_line(tmp_path, room):
    """After a torn line the next controller reported a damaged metadata store."""
    assignments = SlotAssignments(str(tmp_path), 10, 1)
    kept = assignments.assign("a", [0, 1])
    file = assignments._file
    assignments._file = FullFile(file, room)

    with pytest.raises(OSError, match="No space"):
        assignments.assign("b", [0])
    free_while_full = assignments.free_count
    assignments._file = file
    given = assignments.assign("c", [0])
    assignments.close()

    assert free_while_full == 8
    again = SlotAssignments(str(tmp_path), 10, 1)
    assert sorted(again.topics()) == ["a", "c"]
    assert again.assign("a", [0, 1]) == kept
    assert again.assign("c", [0]) == given
    again.close()


def test_slots_that_cannot_be_released_are_given_to_nobody_else(tmp_path):
    """Otherwise the next controller process would take them from their new owner."""
    assignments = SlotAssignments(str(tmp_path), 10, 1)
    assignments.assign("a", [0, 1])
    file = assignments._file
    assignments._file = FullFile(file, 0)

    assignments.release("a")
    assignments._file = file
    assignments.assign("b", [0])
    assignments.close()

    again = SlotAssignments(str(tmp_path), 10, 1)
    again.release("a")  # as the start of a controller does
    assert again.free_count == 9
    assert again.assign("b", [0]) == {0: (2, 1)}
    again.close()


def test_topic_made_again_has_none_of_the_slots_that_could_not_be_released(tmp_path):
    """They would have the incarnations of the deleted replicas."""
    assignments = SlotAssignments(str(tmp_path), 10, 1)
    before = assignments.assign("a", [0, 1])
    file = assignments._file
    assignments._file = FullFile(file, 0)
    assignments.release("a")
    with pytest.raises(OSError, match="No space"):
        assignments.assign("a", [0])
    assignments._file = file

    again = assignments.assign("a", [0, 1])

    assert not set(again.values()) & set(before.values())
    assert assignments.free_count == 8
    assignments.close()
