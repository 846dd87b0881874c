"""Consumers of the client against scripted brokers, for one seed, in one thread and simulated time:
leaders move, brokers are slow, silent, cut off or gone, answers are lost, late or errors, the group
rebalances.

The consumers are the product's (``Core`` with all of its parts, both kinds of members); what they
run on is ``simulated_surroundings``, and ``consumer_history`` checks what was returned. When the
faults end, every record is returned within ``CALM_S``.
"""

from __future__ import annotations

import random
from typing import Any

from support.consumer_history import History
from support.simulated_brokers import FOREVER, KEYS, NODES, Broker, Brokers, Event, Key, World
from support.simulated_group import ClassicGroup, ConsumerGroup
from support.simulated_surroundings import SimulatedSurroundings

from kbroker.client.consumer.commits import Commits, Offsets
from kbroker.client.consumer.consumer_settings import consumer_settings
from kbroker.client.consumer.core import Core
from kbroker.client.consumer.lanes import Call
from kbroker.client.consumer.membership import Membership
from kbroker.client.errors import ClientError

FAULTS_S = 30.0
CALM_S = 60.0
ASSIGNORS = (["range"], ["cooperative-sticky"], ["roundrobin"], ["sticky"], ["range", "sticky"])


class Program:
    """One consumer: it polls, and commits what it got."""

    def __init__(self, simulation: Simulation, number: int, settings: dict[str, Any]) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.number = number
        around = SimulatedSurroundings(simulation.brokers)
        around.made.on_wake = lambda: self.step_in(0.0)
        self.core = Core(consumer_settings(settings, {}), around)
        self.committing: dict[Key, int] = {}  # the offsets of the last commits, however they end
        self._commits_itself = bool(self.core.settings["enable.auto.commit"])
        self._step: Event | None = None
        self._step_at = FOREVER
        self.is_closed = False
        self.away_until = 0.0
        if self.core.commits is None:
            self.core.assign(KEYS)
        else:
            self._note_commits(self.core.commits)
            self.core.topics = frozenset(name for name, _ in KEYS)
            self.core.membership = Membership(self.core)
            self.core.membership.listener = self
            self.core.track()
            self.core.membership.subscribe(self.core.topics)
        self.step_in(0.0)

    def _note_commits(self, commits: Commits) -> None:
        begin = commits.commit

        def commit(offsets: Offsets, *row: Any, **more: Any) -> Call:
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
        limit = self.simulation.limit()
        found: list[Any] = []
        with core:
            try:
                found = core.poll(0.0, ("records", None), lambda: core.collector.records(limit))
            except ClientError as error:
                self.simulation.history.raised(self.number, error)
        self.simulation.history.returned(self, found)
        self.simulation.history.stepped(self.number, bool(found))
        if found and not self._commits_itself and self.world.random.random() < 0.4:
            self._commit()
        if found:
            self.step_in(self.simulation.pause())
        else:
            self.step_in(min(core._due_in(now), max(core.fetcher.due_in(now), 0.001)))

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
        core = self.core
        core.stop_auto_commit()
        self._commits_itself = False
        with core:
            if core.membership is not None:
                core.membership.close(0.0)
        self.is_closed = True
        core.fetcher.close(self.world.now)


class Simulation:
    """The brokers, their script, and one or two consumers."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        chance = self.world.random
        self.kind = chance.choice(("alone", "classic", "classic", "consumer"))
        self.unclean = chance.random() < 0.4
        self.brokers = Brokers(self.world)
        self.brokers.fetch_version = chance.choice((12, 17, 17))
        self.brokers.loss = chance.choice((0.0, 0.003, 0.02))
        self.history = History(self.world, self.brokers, self.unclean, self.kind != "alone")
        made = ConsumerGroup if self.kind == "consumer" else ClassicGroup
        self.group = self.brokers.group = made(self.world, self.history.accepted)
        self.assignors = chance.choice(ASSIGNORS)
        self.commits_itself = chance.random() < 0.3
        self.poll_s = chance.choice((12, 60))
        self.programs: list[Program] = []
        self._killed = False
        self.is_slow = chance.random() < 0.25  # records wait in the consumers
        self.is_steady = chance.random() < 0.15  # one broker is gone, and nobody takes its place
        self.start()

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap.servers": ",".join(f"broker:{9000 + n}" for n in range(NODES)),
            "auto.offset.reset": "earliest",
            "request.timeout.ms": 6_000,
            "default.api.timeout.ms": 20_000,
            "socket.connection.setup.timeout.ms": 3_000,
            "metadata.max.age.ms": 15_000,
            "max.poll.interval.ms": self.poll_s * 1000,
        }
        if self.kind != "alone":
            found["group.id"] = "g"
            found["enable.auto.commit"] = self.commits_itself
            found["auto.commit.interval.ms"] = 1_000
        if self.kind == "classic":
            found["session.timeout.ms"] = 6_000
            found["heartbeat.interval.ms"] = 1_000
            found["partition.assignment.strategy"] = self.assignors
        if self.kind == "consumer":
            found["group.protocol"] = "consumer"
        return found

    def start(self) -> None:
        self.programs.append(Program(self, len(self.programs), self.settings))

    @property
    def open(self) -> list[Program]:
        return [one for one in self.programs if not one.is_closed]

    def limit(self) -> int:
        """Of a poll."""
        return 1 if self.is_slow else self.world.random.choice((1, 3, 500))

    def pause(self) -> float:
        """Between polls that return something."""
        return self.world.random.choice((0.05, 0.1, 0.2) if self.is_slow else (0.001, 0.01, 0.1))

    # -- the script

    def befall(self) -> None:
        """One thing happens."""
        chance, brokers = self.world.random, self.brokers
        broker = brokers.nodes[chance.randrange(NODES)]
        key = chance.choice(KEYS)
        if self.is_steady:
            if not self._killed and broker.number != brokers.coordinator:
                self._killed = True
                brokers.kill(broker, chance.random() < 0.5)
            return
        kind = chance.choices(
            ("move", "silence", "cut", "slow", "errors", "coordinator", "kill", "member", "pause",
             "refuse", "expel", "rebalance"),
            (5, 2, 1, 1, 2, 1, 0.3, 1, 0.5, 0.5, 1, 1),
        )[0]  # fmt: skip
        match kind:
            case "move":
                cut = chance.choice((0, 1, 2)) if self.unclean else 0
                brokers.move(key, cut)
            case "silence" if brokers.is_well(broker):
                self.silence(broker)
            case "cut":
                brokers.cut(broker)
            case "slow":
                broker.slow_s = chance.choice((0.2, 2.0))
                self.world.after(chance.uniform(1, 8), lambda: self.end_slowness(broker))
            case "errors":
                brokers.disturb(broker)
                broker.errors = chance.randint(1, 10)
            case "coordinator":
                able = [one.number for one in brokers.nodes if brokers.is_well(one)]
                if able:
                    brokers.coordinate(chance.choice(able))
            case "kill" if not self._killed and brokers.is_well(broker):
                self._killed = True
                brokers.kill(broker, chance.random() < 0.5)
                self.world.after(chance.uniform(0.5, 6), lambda: brokers.move_from(broker))
            case "member" if self.kind != "alone":
                self.change_members()
            case "expel" if self.group.members:
                brokers.disturb()
                self.group.expel(chance.choice(list(self.group.members.values())))
            case "rebalance" if self.group.members:
                self.rebalance()
            case "pause":
                seconds = chance.choice((1.0, 5.0, 20.0))
                chance.choice(self.open).stay_away(seconds)
                self.world.after(seconds, brokers.disturb)
            case "refuse":
                brokers.refused.add(key)
                self.world.after(chance.uniform(1, 8), lambda: self.end_refusal(key))

    def end_slowness(self, broker: Broker) -> None:
        broker.slow_s = 0.0
        self.brokers.disturb(broker)

    def end_refusal(self, key: Key) -> None:
        self.brokers.refused.discard(key)
        self.brokers.disturbed[key] = self.world.now

    def silence(self, broker: Broker) -> None:
        seconds = self.world.random.choice((0.5, 4.0, 15.0))
        self.brokers.disturb(broker)
        broker.silent_until = self.world.now + seconds
        if self.world.random.random() < 0.8:
            wait = self.world.random.uniform(1, 6)
            self.world.after(wait, lambda: self.brokers.move_from(broker))

        def resume() -> None:
            if broker.silent_until <= self.world.now:
                broker.is_gone = False
                self.brokers.disturb(broker)

        self.world.after(seconds, resume)

    def rebalance(self) -> None:
        """Perhaps while commits wait."""
        chance, brokers = self.world.random, self.brokers
        if chance.random() < 0.5:
            self.group.commits_wait_until = self.world.now + chance.uniform(2, 8)
            self.world.after(8.0, brokers.disturb)
        brokers.disturb()
        self.world.after(self.group.rebalance(), brokers.disturb)

    def change_members(self) -> None:
        self.brokers.disturb()
        if len(self.open) < 2:
            self.start()
        else:
            self.world.random.choice(self.open).close()

    # -- the run

    def run(self) -> None:
        began = self.world.now
        self._next_fault()
        self._next_append()
        self._run_until(lambda: self.world.now >= began + FAULTS_S, FAULTS_S + 1)
        self._calm()
        self._run_until(self.is_done, CALM_S)
        assert self.is_done(), self.history.missing()

    def _run_until(self, done: Any, seconds: float) -> None:
        until = self.world.now + seconds
        while not done() and self.world.now < until:
            assert self.world.run_next(), "nothing will ever happen again"

    def _next_fault(self) -> None:
        self._fault = self.world.after(self.world.random.expovariate(0.5), self._on_fault)

    def _on_fault(self) -> None:
        self.befall()
        self._next_fault()

    def _next_append(self) -> None:
        chance = self.world.random
        self._append = self.world.after(chance.expovariate(4), self._on_append)

    def _on_append(self) -> None:
        self.brokers.append(self.world.random.choice(KEYS), self.world.random.randint(1, 5))
        self.history.is_away = any(one.away_until > self.world.now for one in self.open)
        self.history.check_progress()
        self._next_append()

    def _calm(self) -> None:
        """No more faults."""
        self.is_slow = False
        self._fault.cancel()
        self._append.cancel()
        brokers = self.brokers
        brokers.loss = 0.0
        brokers.refused.clear()
        for broker in brokers.nodes:
            broker.errors, broker.slow_s = 0, 0.0
            if broker.silent_until < FOREVER:
                broker.silent_until = min(broker.silent_until, self.world.now)
                broker.is_gone = False
        for broker in brokers.nodes:
            brokers.move_from(broker)

    def is_done(self) -> bool:
        return not self.history.missing()


def simulate(seed: int) -> Simulation:
    before = random.getstate()
    random.seed(seed)  # back-offs and the order of brokers
    try:
        made = Simulation(seed)
        made.run()
        return made
    finally:
        random.setstate(before)
