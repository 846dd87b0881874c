"""Producers of the client against scripted brokers, for one seed, in one thread and simulated time:
leaders move and lose what is not acknowledged, brokers are slow, silent, cut off or gone, answers
are lost, late or errors, topics grow or are deleted and created again.

The producer is the product's, with its extensions (``simulated_producer``). What must be so:

(a) Every future ends, and so does every transaction.
(b) An acknowledged record is in the log, at the offset that was told, and with idempotence once.
    Each topic that has had a name has a log of its own.
(c) Records of a partition are in the order in which they were sent, with idempotence or one request
    in flight. What no client can promise of a topic that is created again says ``_begins_amid``.
(d) A record that was refused for good is not in the log.
(e) Of a transaction that was told as committed every record is acknowledged and read, of one that
    was told as aborted none is read.
(f) When the faults end, records are acknowledged again. The sender does not run in circles.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

from support.simulation.simulated_brokers import FOREVER, NODES, TOPICS, Key, World
from support.simulation.simulated_produce_brokers import ProduceBrokers
from support.simulation.simulated_producer import SimulatedKafkaProducer

from kbroker.client.errors import ClientError, RejectedError
from kbroker.client.producer.identity import BROKEN, FATAL, NEW, OPEN, READY
from kbroker.errors import ErrorCode

FAULTS_S = 8.0
CALM_S = 60.0
REQUESTS_A_SECOND = 400
# The broker had not appended it.
REFUSED = (ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)


class Sent(NamedTuple):
    """A record. transaction: its number, -1 without one."""

    uid: int
    key: Key
    future: Any
    transaction: int


class Script:
    """Brokers, and what befalls them. is_calm: nothing does any more; changes_topics: topics grow,
    and are deleted and created again.
    """

    changes_topics = False

    def __init__(self, seed: int, is_strict: bool = False) -> None:
        self.world = World(seed)
        chance = self.world.random
        self.brokers = ProduceBrokers(self.world, is_strict)
        self.brokers.loss = chance.choice((0.0, 0.003, 0.02))
        self.poisons = chance.random() < 0.3
        if chance.random() < 0.2:
            self.brokers.too_large = chance.randint(2, 6)
        self.is_calm = False
        self._killed = False
        self._requests: list[int] = []

    def _next_fault(self) -> None:
        self._fault = self.world.after(self.world.random.expovariate(1.0), self._on_fault)

    def _on_fault(self) -> None:
        self.befall()
        self._next_fault()

    def befall(self) -> None:
        """One thing happens."""
        chance, brokers = self.world.random, self.brokers
        broker = brokers.nodes[chance.randrange(NODES)]
        kind = chance.choices(
            ("move", "silence", "cut", "slow", "errors", "coordinator", "kill", "grow", "recreate"),
            (5, 2, 1.5, 1, 2, 1, 0.3, *((0.3, 1) if self.changes_topics else (0, 0))),
        )[0]
        match kind:
            case "move":
                brokers.move(chance.choice(brokers.keys))
            case "silence" if brokers.is_well(broker):
                seconds = chance.choice((0.5, 4.0, 10.0))
                broker.silent_until = self.world.now + seconds
                if chance.random() < 0.8:
                    wait = chance.uniform(1, 5)
                    self.world.after(wait, lambda: brokers.move_from(broker))
                self.world.after(seconds, lambda: self._resume(broker))
            case "cut":
                brokers.cut(broker)
            case "grow" if len(brokers.keys) == 4:
                brokers.grow("b")
            case "recreate":
                brokers.recreate(chance.choice(list(TOPICS)))
            case "slow":
                broker.slow_s = chance.choice((0.2, 1.0))
                self.world.after(chance.uniform(1, 5), lambda: setattr(broker, "slow_s", 0.0))
            case "errors":
                broker.errors = chance.randint(1, 8)
            case "coordinator":
                able = [one.number for one in brokers.nodes if brokers.is_well(one)]
                if able:
                    brokers.coordinate(chance.choice(able))
            case "kill" if not self._killed and brokers.is_well(broker):
                self._killed = True
                brokers.kill(broker, chance.random() < 0.5)
                self.world.after(chance.uniform(0.5, 5), lambda: brokers.move_from(broker))

    def _resume(self, broker: Any) -> None:
        if broker.silent_until <= self.world.now:
            broker.is_gone = False

    def _next_count(self) -> None:
        self._requests = [*self._requests[-1:], self.brokers.requests]
        made = self._requests[-1] - self._requests[0]
        assert made <= REQUESTS_A_SECOND, f"{made} requests in a second"
        self.world.after(1.0, self._next_count)

    def _calm(self) -> None:
        """No more faults."""
        self._fault.cancel()
        self.is_calm = True
        brokers = self.brokers
        brokers.loss = 0.0
        for broker in brokers.nodes:
            broker.errors, broker.slow_s = 0, 0.0
            if broker.silent_until < FOREVER:
                broker.silent_until = min(broker.silent_until, self.world.now)
                broker.is_gone = False
        for broker in brokers.nodes:
            brokers.move_from(broker)
        for broker in brokers.nodes:
            broker.views.update(brokers.leads)
            broker.ids.update({key[0]: lead.topic_id for key, lead in brokers.leads.items()})


class Simulation(Script):
    """The brokers, their script, and one producer."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, is_strict=seed % 4 == 3)
        chance = self.world.random
        self.kind = chance.choice(("plain", "idempotent", "idempotent", "transactional"))
        self.in_flight = chance.choice((1, 2, 5))
        self.changes_topics = self.kind != "transactional" and chance.random() < 0.4
        self.brokers.has_ids = not self.changes_topics or chance.random() < 0.7
        self.sent: list[Sent] = []
        self.outcomes: dict[int, str] = {}
        self.uids = itertools.count()
        self.transaction = -1
        self.is_over = False
        self.producer = SimulatedKafkaProducer(self.brokers, self.settings)

    @property
    def settings(self) -> dict[str, Any]:
        chance = self.world.random
        found: dict[str, Any] = {
            "bootstrap.servers": ",".join(f"broker:{9000 + n}" for n in range(NODES)),
            "enable.idempotence": self.kind != "plain",
            "max.in.flight.requests.per.connection": self.in_flight,
            "linger.ms": chance.choice((0, 0, 20)),
            "batch.size": chance.choice((100, 400, 16_384)),
            "request.timeout.ms": chance.choice((2_000, 6_000)),
            "delivery.timeout.ms": chance.choice((7_000, 15_000, 60_000)),
            "max.block.ms": 20_000,
            "socket.connection.setup.timeout.ms": 3_000,
            "metadata.max.age.ms": 15_000,
            "send.buffer.bytes": -1,
            "receive.buffer.bytes": -1,
            "enable.metrics.push": False,
        }
        if self.kind == "transactional":
            found["transactional.id"] = "x"
        return found

    # -- the program

    def _next_send(self, seconds: float = 0.0) -> None:
        self.world.after(seconds, self._send)

    def _send(self) -> None:
        if self.kind == "transactional":
            self._step_transaction()
            return
        self._append_some()
        if not self.is_calm:
            self._next_send(self.world.random.choice((0.001, 0.02, 0.1, 0.5)))

    def _append_some(self) -> None:
        chance = self.world.random
        for _ in range(chance.choice((1, 1, 3, 10))):
            key = chance.choice(self.brokers.keys)
            if 0 < self.producer.count(key[0]) <= key[1]:
                continue  # it has not heard of that partition yet
            uid = next(self.uids)
            if self.poisons and chance.random() < 0.03 and not self.is_calm:
                self.brokers.poisoned.add(uid)
            future = self.producer.append(*key, b"%d" % uid)
            if future is not None:
                self.sent.append(Sent(uid, key, future, self.transaction))

    # -- transactions

    def _step_transaction(self) -> None:
        """What comes next, whatever came before."""
        identity, chance = self.producer._identity, self.world.random
        if self.is_over or (self.is_calm and identity.state in (READY, FATAL)):
            return
        if identity.state == NEW:
            self._call(lambda: identity.init(10.0), self._noted)
        elif identity.state == READY:
            self.producer.begin_transaction()
            self.transaction += 1
            self.outcomes[self.transaction] = "open"
            self._next_send(0.001)
        elif identity.state == OPEN and chance.random() < 0.7 and not self.is_calm:
            self._append_some()
            self._next_send(chance.choice((0.001, 0.02, 0.1)))
        elif identity.state == OPEN and chance.random() < 0.7:
            self._when_flushed(self._commit, self._next_send)
        elif identity.state in (OPEN, BROKEN):
            self._abort()

    def _when_flushed(self, then: Callable[[], None], late: Callable[[], None]) -> None:
        """late: what is done instead if it takes longer than the program waits."""
        seconds = self.world.random.choice((0.1, 2.0, 20.0, 20.0))
        until = FOREVER if self.is_calm else self.world.now + seconds

        def look() -> None:
            if not self.producer.pending:
                then()
            elif self.world.now >= until:
                late()
            else:
                self.world.after(0.01, look)

        look()

    def _call(self, call: Callable[[], Any], then: Callable[[Exception | None], None]) -> None:
        self.producer.in_lane(call, lambda _, error: then(error))

    def _noted(self, error: Exception | None) -> None:
        self.producer._settle()
        self._next_send(0.01)

    def _commit(self) -> None:
        identity, number = self.producer._identity, self.transaction
        if identity.state != OPEN:
            self._next_send()
            return
        self.producer._note_records()
        self.outcomes[number] = "unsure"

        def ended(error: Exception | None) -> None:
            if error is None:
                self.outcomes[number] = "committed"
            self._noted(error)

        self._call(lambda: identity.commit(20.0), ended)

    def _abort(self) -> None:
        producer, identity, number = self.producer, self.producer._identity, self.transaction
        sender = producer._sender
        was_broken = identity.give_up()
        producer._settle()
        sender.aborting = True
        producer.turn_in(0.0)

        def flushed() -> None:
            sender.aborting = False
            producer._note_records()
            sure = not (sender.unsure or was_broken)
            self._call(lambda: identity.abort(20.0, sure=sure), ended)

        def ended(error: Exception | None) -> None:
            if error is None and self.outcomes[number] == "open":
                self.outcomes[number] = "aborted"
            self._noted(error)

        def late() -> None:
            sender.aborting = False
            self._next_send(0.001)

        self._when_flushed(flushed, late)

    # -- the run

    def run(self) -> None:
        began = self.world.now
        self._next_send()
        self._next_fault()
        self._next_count()
        self._run_until(lambda: self.world.now >= began + FAULTS_S, FAULTS_S + 1)
        self._calm()
        self._run_until(self._is_done, CALM_S)
        assert self._is_done(), f"{self.producer.pending} batches have not ended"
        self._check_progress()
        self.check()

    def _run_until(self, done: Callable[[], bool], seconds: float) -> None:
        until = self.world.now + seconds
        while not done() and self.world.now < until:
            assert self.world.run_next(), "nothing will ever happen again"

    def _is_done(self) -> bool:
        state = self.producer._identity.state
        if self.kind == "transactional" and state not in (READY, FATAL):
            return False
        return not self.producer.pending

    def _check_progress(self) -> None:
        """(f), with records that are sent now."""
        self.is_over = True
        if self.kind == "transactional":
            assert self.producer._identity.state == READY, self.producer._identity.error
            self.producer.begin_transaction()
            self.transaction += 1
        if self._send_and_wait() and self.brokers.former and not self.brokers.has_ids:
            self._run_until(lambda: False, 5.0)  # older leaders are believed after 10 s
        failed = self._send_and_wait()
        assert not failed, f"{failed[0]}: {failed[0].future.exception(0)!r}"
        if self.kind == "transactional":
            self.outcomes[self.transaction] = "open"
            self._when_flushed(self._commit, self._next_send)
            number = self.transaction
            self._run_until(lambda: self.outcomes[number] == "committed", CALM_S)

    def _send_and_wait(self) -> list[Sent]:
        """The records that failed."""
        first = len(self.sent)
        for _ in range(3):
            self._append_some()
        self._run_until(lambda: not self.producer.pending, CALM_S)
        for one in self.sent[first:]:
            assert one.future.done(), f"{one} has not ended"
        errors = [(one, one.future.exception(0)) for one in self.sent[first:]]
        return [one for one, error in errors if error is not None and not self._may_refuse(error)]

    def _may_refuse(self, error: Exception) -> bool:
        return isinstance(error, RejectedError) and error.code == ErrorCode.MESSAGE_TOO_LARGE

    # -- what has come of it

    def check(self) -> None:
        for key in self.brokers.keys:
            former = [log for one, log in self.brokers.former if one == key]
            logs: list[Any] = [*former, self.brokers.leads[key].log]
            rows = [dict(log.records()) for log in logs]
            there = set(chain.from_iterable(at.values() for at in rows))
            sent = [one for one in self.sent if one.key == key]
            for one in sent:
                self._check_one(one, rows, one.uid in there)
            for log, at in zip(logs, rows, strict=True):
                if not (former and _begins_amid(log)):
                    self._check_log(key, list(at.values()))
            if self.kind == "transactional":
                read = set(chain.from_iterable(log.committed() for log in logs))
                self._check_transactions(sent, read)

    def _check_log(self, key: Key, found: list[int]) -> None:
        if self.kind != "plain":
            twice = [uid for uid, count in Counter(found).items() if count > 1]
            assert not twice, f"{key}: {twice[:5]} are twice in the log"
        if self.kind != "plain" or self.in_flight == 1:
            first = list(dict.fromkeys(found))
            assert first == sorted(first), f"{key}: out of order: {_disorder(first)}"

    def _check_one(self, one: Sent, rows: list[dict[int, int]], is_there: bool) -> None:
        """rows: uids by offset, of each log."""
        assert one.future.done(), f"{one} has not ended"
        error = one.future.exception(0)
        if error is None:
            offset = one.future.result(0).offset
            assert is_there, f"{one} was acknowledged, and is not in the log"
            if offset >= 0:
                found = [at.get(offset) for at in rows]
                assert one.uid in found, f"{one}: {found} at {offset}"
        elif isinstance(error, RejectedError) and error.code in REFUSED:
            assert not is_there, f"{one} is in the log, although {error}"
        else:
            assert isinstance(error, ClientError), repr(error)

    def _check_transactions(self, sent: list[Sent], read: set[int]) -> None:
        for one in sent:
            outcome, is_read = self.outcomes.get(one.transaction, ""), one.uid in read
            if outcome == "committed":
                assert is_read, f"{one} was committed, and is not read"
                assert one.future.exception(0) is None, f"{one} was committed, and has failed"
            elif outcome == "aborted":
                assert not is_read, f"{one} was aborted, and is read"


def _begins_amid(log: Any) -> bool:
    """Whether the first batch of a log is not the first one of its producer.

    COMPAT: that of a topic that was created again may be a later one, if several were on their way
    and earlier ones were refused. Produce has no ids of topics before version 13, so that they go
    to whichever topic has the name, and a log takes any first number; a client cannot hear of the
    other topic before. When it does, an earlier batch is out of order, and fails if a later one was
    acknowledged. If none was, nobody can tell which of them the log has, so all of them begin again
    with another epoch, as in Java: some may be out of order there, or twice. None is lost.
    """
    return bool(log.batches) and log.batches[0].sequence > 0


def _disorder(uids: list[int]) -> list[tuple[int, int]]:
    return [pair for pair in itertools.pairwise(uids) if pair[0] > pair[1]][:3]


def simulate(seed: int) -> Simulation:
    before = random.getstate()
    random.seed(seed)  # back-offs and the order of brokers
    made = None
    try:
        made = Simulation(seed)
        made.run()
        return made
    finally:
        random.setstate(before)
        if made is not None:
            made.producer.drop()
