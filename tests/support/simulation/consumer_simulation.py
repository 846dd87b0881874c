"""Consumers of the client against scripted brokers, for one seed, in one thread and simulated time:
leaders move, brokers are slow, silent, cut off or gone, answers are lost, late or errors, the group
rebalances, topics grow or are deleted and created again.

The consumers are the product's (``Core`` with all of its parts, both kinds of members); what they
run on is ``simulated_surroundings``, and ``consumer_history`` checks what was returned. When the
faults end, every record is returned within ``CALM_S``.
"""

from __future__ import annotations

import random
from typing import Any

from support.simulation.consumer_history import History
from support.simulation.simulated_brokers import FOREVER, NODES, TOPICS, Broker, Brokers, Key, World
from support.simulation.simulated_group import SESSION_S, ClassicGroup, ConsumerGroup
from support.simulation.simulated_program import Program

FAULTS_S = 20.0
CALM_S = 60.0
ASSIGNORS = (["range"], ["cooperative-sticky"], ["roundrobin"], ["sticky"], ["range", "sticky"])


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
        self.group.keys = self.brokers.keys
        self.assignors = chance.choice(ASSIGNORS)
        self.commits_itself = chance.random() < 0.3
        self.deletes = False
        self.call = chance.choice(("records", "records", "columns", "columns", "arrow"))
        if not self.unclean:
            self.brokers.transactional = chance.random() < 0.4
            self.brokers.read_committed = chance.random() < 0.5
            self.deletes = chance.random() < 0.3
        self.recreates = self.kind == "alone" and not self.unclean and chance.random() < 0.5
        if self.brokers.fetch_version == 12 and self.kind != "consumer":
            self.brokers.has_ids = chance.random() < 0.3
        self.poll_s = chance.choice((12, 60))
        self.programs: list[Program] = []
        self._killed = False
        self.is_static = self.kind != "alone" and chance.random() < 0.3
        self.is_slow = chance.random() < 0.25  # records wait in the consumers
        self.is_steady = chance.random() < 0.15  # one broker is gone, and nobody takes its place
        self.start()

    def settings(self) -> dict[str, Any]:
        """Of the next consumer."""
        found: dict[str, Any] = {
            "bootstrap.servers": ",".join(f"broker:{9000 + n}" for n in range(NODES)),
            "auto.offset.reset": "earliest",
            # Longer than anything may wait for a broker that is gone, if nobody takes its place.
            "request.timeout.ms": 20_000 if self.is_steady else 6_000,
            "default.api.timeout.ms": 40_000 if self.is_steady else 20_000,
            "socket.connection.setup.timeout.ms": 20_000 if self.is_steady else 3_000,
            "metadata.max.age.ms": 15_000,
            "max.poll.interval.ms": self.poll_s * 1000,
        }
        if self.brokers.read_committed:
            found["isolation.level"] = "read_committed"
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
        if self.is_static:
            taken = {one.instance for one in self.open}
            found["group.instance.id"] = "i0" if "i0" not in taken else "i1"
        return found

    def start(self, **more: Any) -> None:
        """more: settings."""
        settings = {**self.settings(), **more}
        self.programs.append(Program(self, len(self.programs), settings))

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
        if not self.open:  # one of the same instance had its place, and was closed
            self.start()
        chance, brokers = self.world.random, self.brokers
        broker = brokers.nodes[chance.randrange(NODES)]
        key = chance.choice(brokers.keys)
        if self.is_steady:
            if not self._killed and broker.number != brokers.coordinator:
                self._killed = True
                brokers.move(key, to=broker)  # it is asked about positions, and does not respond
                brokers.kill(broker, chance.random() < 0.5)
            elif brokers.is_well(brokers.nodes[brokers.leads[key].leader]):
                brokers.move(key)
            return
        kind = chance.choices(
            ("move", "silence", "cut", "slow", "errors", "coordinator", "kill", "member", "pause",
             "refuse", "expel", "rebalance", "hold", "seek", "delete", "grow", "recreate"),
            (5, 2, 1, 1, 2, 1, 0.3, 3 if self.is_static else 1, 0.5, 0.5, 1, 1, 1, 1, 1, 0.3, 1),
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
            case "hold":
                chance.choice(self.open).pause(key, chance.choice((0.3, 3.0, 10.0)))
            case "seek" if self.kind == "alone" and not self.unclean:
                self.seek(key)
            case "delete" if self.deletes:
                self.delete(key)
            case "grow" if self.kind != "alone":
                self.grow()
            case "recreate" if self.recreates:
                self.recreate(chance.choice(list(TOPICS)))
            case "refuse":
                brokers.refused.add(key)
                self.world.after(chance.uniform(1, 8), lambda: self.end_refusal(key))

    def end_slowness(self, broker: Broker) -> None:
        broker.slow_s = 0.0
        self.brokers.disturb(broker)

    def end_refusal(self, key: Key) -> None:
        self.brokers.refused.discard(key)
        self.brokers.disturb_partition(key)

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

    def seek(self, key: Key) -> None:
        """To any offset of the log, with or without its epoch. One that a former leader does not
        have, which still takes itself for the leader, may begin anew as out of range.
        """
        log = self.brokers.leads[key].log
        known = [one.views[key].log.end for one in self.brokers.nodes if key in one.views]
        offset = self.world.random.randint(log.start, max(log.start, min([log.end, *known])))
        epoch = log.epoch_at(offset - 1) if self.world.random.random() < 0.5 else -1
        for program in self.open:
            program.seek(key, offset, epoch)

    def delete(self, key: Key) -> None:
        """Old records, also some that nobody has read."""
        log = self.brokers.leads[key].log
        log.delete_before(self.world.random.randint(log.start, log.stable))
        self.brokers.disturb_partition(key)
        self.history.deleted(key)

    def grow(self) -> None:
        """Once."""
        if len(self.brokers.keys) == len(self.brokers.leads) == 4:
            self.brokers.disturb()
            self.brokers.grow("b")
            self.group.topics_grew()

    def recreate(self, name: str) -> None:
        brokers = self.brokers
        brokers.recreate(name)
        for key in [key for key in brokers.keys if key[0] == name]:
            brokers.disturb_partition(key)
            self.history.recreated(key)

    def rebalance(self) -> None:
        """Perhaps while commits wait."""
        chance, brokers = self.world.random, self.brokers
        if chance.random() < 0.5:
            self.group.commits_wait_until = self.world.now + chance.uniform(2, 8)
            self.world.after(8.0, brokers.disturb)
        brokers.disturb()
        self.world.after(self.group.rebalance(), brokers.disturb)

    def change_members(self) -> None:
        chance = self.world.random
        self.brokers.disturb()
        if self.is_static and self.open and chance.random() < 0.6:
            self.replace(chance.choice(self.open))
        elif len(self.open) < 2:
            self.start()
        else:
            self.close(chance.choice(self.open))

    def close(self, program: Program) -> None:
        program.close()
        if self.is_static:  # it has not left the group
            self.world.after(SESSION_S + 0.1, self.brokers.disturb)

    def replace(self, program: Program) -> None:
        """By one of the same instance: when it is closed, or perhaps before."""
        instance = {"group.instance.id": program.instance}
        if self.world.random.random() < 0.2:
            self.start(**instance)
            return
        self.close(program)

        def start() -> None:
            if program.instance not in {one.instance for one in self.open}:
                self.brokers.disturb()
                self.start(**instance)

        self.world.after(self.world.random.choice((0.0, 1.0, 4.0)), start)

    # -- the run

    def run(self) -> None:
        began = self.world.now
        self._next_fault()
        self._next_append()
        self._run_until(lambda: self.world.now >= began + FAULTS_S, FAULTS_S + 1)
        self._calm()
        self._run_until(self._is_done_by_somebody, CALM_S)
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
        key, brokers = self.world.random.choice(self.brokers.keys), self.brokers
        first = brokers.leads[key].log.end
        brokers.append(key, self.world.random.randint(1, 5))
        if self.history.topics[key]:
            self.history.appended(key, first)
        self.history.is_slow = self.is_slow
        self.history.is_away = any(one.away_until > self.world.now for one in self.open)
        self.history.check_progress()
        self._next_append()

    def _calm(self) -> None:
        """No more faults."""
        if not self.open:
            self.start()
        self.is_slow = False
        self.brokers.end_transactions()
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

    def _is_done_by_somebody(self) -> bool:
        """As ``is_done``. The last program may end only now, when it hears that one of the same
        instance had its place, which was closed.
        """
        if not self.open:
            self.start()
            return False
        return self.is_done()

    def is_done(self) -> bool:
        """Everything was returned, and positions are behind the markers of transactions, too."""
        ends = {key: self.brokers.readable(lead.log) for key, lead in self.brokers.leads.items()}
        return (
            all(
                part.position == ends[key]
                for program in self.open
                for key, part in program.core.fetcher.parts.items()
            )
            and not self.history.missing()
        )


def simulate(seed: int) -> Simulation:
    before = random.getstate()
    random.seed(seed)  # back-offs and the order of brokers
    try:
        made = Simulation(seed)
        made.run()
        return made
    finally:
        random.setstate(before)
