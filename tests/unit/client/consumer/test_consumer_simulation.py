"""Consumers against brokers that follow a script, with seeds: whatever befalls the brokers, every
record is returned, once and in order, and nothing else is committed (``consumer_simulation``).

KBROKER_CONSUMER_SEEDS says how many; CI runs 400 (.ci/run), and ``tools/exam.py simulation
--seeds`` as many as one likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.running.seeds import in_chunks
from support.simulation.seed_runs import cheaply, repeat_command, run_consumers
from support.simulation.simulated_brokers import Brokers, World
from support.simulation.simulated_surroundings import SimulatedSurroundings

from kbroker.client.batches.offsets import ListedOffsets, Offset
from kbroker.client.connections.metadata import Partition, Topic
from kbroker.client.consumer.consumer_settings import consumer_settings
from kbroker.client.consumer.core import Core
from kbroker.client.consumer.lanes import LaneCall
from kbroker.client.consumer.partitions import ReadPartition
from kbroker.client.consumer.positions import LeaderEpochEnd

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("seeds", in_chunks("KBROKER_CONSUMER_SEEDS", 400), ids=str)
def test_every_record_is_returned_once_and_in_order(seeds: range) -> None:
    returned = 0
    with cheaply():
        for seed in seeds:
            print(repeat_command("consumers", seed))
            returned += run_consumers(seed)
    assert returned > len(seeds), "nothing happened"


def lone_core(**settings: str) -> Core:
    given = consumer_settings({"bootstrap.servers": "broker:9000", **settings}, {})
    return Core(given, SimulatedSurroundings(Brokers(World(0))))


class Asked:
    """Lanes of leaders. answers: what is to be called with the answers to what was asked."""

    def __init__(self) -> None:
        self.answers: list[Callable[..., Any]] = []

    def of(self, node: int) -> Asked:
        return self

    def run(self, call: Any, what: str, seconds: float, then: Callable[..., Any]) -> None:
        self.answers.append(then)


def test_the_end_of_an_epoch_is_dropped_after_a_seek_even_to_the_same_offset():
    """Position, epoch and leader are the same, and only the version tells the answers apart."""
    core, asked, key = lone_core(), Asked(), ("a", 0)
    core.positions._lanes = asked
    part = core.fetcher.parts[key] = ReadPartition(key, 1)
    part.leader, part.leader_epoch = 0, 1
    for _ in range(2):
        part.seek(5, 0)
        core.positions.look()
        core.positions.update(1000.0)

    asked.answers[0]({key: LeaderEpochEnd(0, 3)}, None)
    core.positions.update(1000.0)

    assert (part.position, part.in_lookup, part.validating) == (5, True, True)
    assert len(asked.answers) == 2
    asked.answers[1]({key: LeaderEpochEnd(0, 5)}, None)
    assert (part.position, part.validating) == (5, False)


def topic_led_by(leader: int, epoch: int) -> Topic:
    return Topic("a", bytes(16), {0: Partition(leader, epoch)}, False)


def listed(key: tuple[str, int], offset: Offset) -> ListedOffsets:
    made = ListedOffsets()
    made.found[key] = offset
    return made


def test_where_to_begin_is_asked_of_the_next_leader_while_the_last_one_is_silent():
    """A partition stood still for request.timeout.ms: the machine of its leader was gone."""
    core, asked, key = lone_core(**{"auto.offset.reset": "earliest"}), Asked(), ("a", 0)
    core.positions._lanes = asked
    part = core.fetcher.parts[key] = ReadPartition(key, 1)
    core.metadata.topics["a"] = topic_led_by(1, epoch=4)
    core._on_leaders()
    core.positions.update(1000.0)
    assert (part.leader, len(asked.answers)) == (1, 1)

    core._on_leaders()
    core.positions.update(1000.0)
    assert len(asked.answers) == 1, "nothing has changed"
    core.metadata.topics["a"] = topic_led_by(2, epoch=5)
    core._on_leaders()
    core.positions.update(1000.0)

    assert (part.leader, len(asked.answers)) == (2, 2)
    asked.answers[0](listed(key, Offset(7, -1, 4)), None)
    assert part.position is None, "an answer of the last leader"
    asked.answers[1](listed(key, Offset(6, -1, 5)), None)
    assert (part.position, part.epoch) == (6, 5)


def test_a_commit_that_is_on_its_way_is_waited_for_without_polling():
    """One that takes longer than the interval of commits would be looked at a thousand times a
    second.
    """
    core = lone_core(**{"group.id": "g"})
    core.metadata._wanted = False
    core.positions.update(core._clock())
    now = core._commit_at + 1
    assert core._due_in(now) < 0.01

    core._committing = LaneCall()

    assert core._due_in(now) > 1
