"""``BatchProducer`` against scripted brokers, for one seed, in one thread and simulated time, under
the faults of ``producer_simulation``: the caller sends whole batches, waits in ``send`` and
``flush``, ends transactions, and makes another producer when one has failed.

What must be so:

(a) Every call returns or raises a ClientError, in the time that its deadlines allow.
(b) What a flush has returned for is in the log, with idempotence once; what was counted as
    acknowledged is in it, too.
(c) Batches of a producer are in the order of ``send``, with idempotence or one request in flight.
(d) A batch is in the log whole or not at all, and not if it was too large or had a bad record.
(e) Of a transaction that ended as committed all is read, of one that was aborted nothing.
(f) When the faults end, batches are acknowledged again. Nothing runs in circles. What an abort has
    given up leaves no gap in the numbers of what follows.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from typing import Any, NamedTuple

from support.simulation.producer_simulation import FAULTS_S, REFUSED, Script
from support.simulation.simulated_batch_producer import PassingCluster, SimulatedBatchProducer
from support.simulation.simulated_brokers import KEYS, NODES, Key

from kbroker.client.errors import ClientError, RejectedError, Timeout
from kbroker.errors import ErrorCode
from kbroker.record.builder import BatchBuilder

# Beyond the deadlines of a call: its last attempts end with those of their requests.
SLACK_S = 60.0
PROGRESS_TRIES = 5


class SentBatchRow(NamedTuple):
    """producer: which one, by number. transaction: -1 without one."""

    uids: tuple[int, ...]
    producer: int
    transaction: int


class BatchSimulation(Script):
    """The brokers, their script, and one program with a producer after the other."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        chance = self.world.random
        self.kind = chance.choice(("plain", "idempotent", "idempotent", "transactional"))
        self.in_flight = chance.choice((1, 2, 5))
        self.delivery_s = chance.choice((2.0, 7.0, 30.0))
        self.buffer_bytes = chance.choice((200, 1_000, 1 << 20))
        self.request_bytes = chance.choice((300, 1 << 20))
        self.cluster = PassingCluster(
            ",".join(f"broker:{9000 + n}" for n in range(NODES)),
            client_id="batches",
            request_timeout=chance.choice((2.0, 6.0)),
            deadline=10.0,
            connect_timeout=3.0,
        )
        self.cluster.brokers = self.brokers
        self.batches: dict[Key, list[SentBatchRow]] = defaultdict(list)
        self.uids = itertools.count()
        self.flushed: set[int] = set()
        self.acknowledged: Counter[tuple[int, Key]] = Counter()
        self.outcomes: dict[int, str] = {}
        self.transaction = -1
        self.number = -1
        self.producer = self._made()

    @property
    def sent(self) -> list[int]:
        return [uid for rows in self.batches.values() for row in rows for uid in row.uids]

    def _made(self) -> SimulatedBatchProducer:
        self.number += 1
        return SimulatedBatchProducer(
            self.cluster,
            acks=-1 if self.kind != "plain" else 1,
            idempotent=self.kind != "plain",
            transactional_id="x" if self.kind == "transactional" else None,
            delivery_timeout=self.delivery_s,
            max_in_flight=self.in_flight,
            buffer_bytes=self.buffer_bytes,
            request_bytes=self.request_bytes,
        )

    # -- the program

    def _call(self, call: Any, *args: Any, **named: Any) -> Any:
        began = self.world.now
        try:
            return call(*args, **named)
        except RejectedError as error:
            self._check_gap(error)
            raise
        finally:
            self._note_acknowledged()
            took = self.world.now - began
            assert took <= self.delivery_s + SLACK_S, f"{call.__name__} took {took:.1f} s"

    def _check_gap(self, error: RejectedError) -> None:
        """Only a broker that does not know of newer leaders may miss what comes before a batch."""
        if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            (gap,) = (
                there
                for key, there in self.brokers.gaps.items()
                if f"{key[0]}-{key[1]}:" in str(error)
            )
            assert not gap, f"a gap: {error}"

    def _note_acknowledged(self) -> None:
        for key, count in self.producer.acknowledged.items():
            self.acknowledged[self.number, key] = count

    def _send_some(self) -> None:
        chance = self.world.random
        for _ in range(chance.choice((1, 1, 3, 10))):
            key, builder = chance.choice(KEYS), BatchBuilder()
            uids = tuple(next(self.uids) for _ in range(chance.choice((1, 2, 8))))
            if self.poisons and chance.random() < 0.03 and not self.is_calm:
                self.brokers.poisoned.add(uids[-1])
            for uid in uids:
                builder.append(b"%d" % uid, timestamp=1)
            self.batches[key].append(SentBatchRow(uids, self.number, self.transaction))
            self._call(self.producer.send, *key, bytearray(builder.build()), len(uids))

    def _flush(self) -> None:
        self._call(self.producer.flush)
        for key, rows in self.batches.items():
            mine = [row for row in rows if row.producer == self.number]
            if self.kind != "transactional":
                self.flushed.update(uid for row in mine for uid in row.uids)
                count = sum(len(row.uids) for row in mine)
                assert self.producer.acknowledged.get(key, 0) == count, f"{key} was not flushed"

    def _step(self) -> None:
        try:
            if self.kind == "transactional":
                self._transact(commit=self.world.random.random() < 0.6)
            else:
                self._send_some()
                if self.world.random.random() < 0.4:
                    self._flush()
        except ClientError as error:
            self._replace(error)

    def _transact(self, *, commit: bool) -> None:
        chance, producer = self.world.random, self.producer
        self._call(producer.begin)
        self.transaction += 1
        number = self.transaction
        self.outcomes[number] = "open"
        try:
            while True:
                self._send_some()
                if chance.random() < 0.4:
                    break
                self.cluster.pass_time(chance.choice((0.001, 0.1)))
            self.outcomes[number] = "unsure"
            self._call(producer.end, commit=commit)
        except ClientError:
            if chance.random() < 0.3:
                raise  # the next producer of the id aborts it
            self._call(producer.end, commit=False)
            # An end that got no response may have committed it, which an abort does not undo.
            self.outcomes[number] = "unsure" if self.outcomes[number] == "unsure" else "aborted"
        else:
            self.outcomes[number] = "committed" if commit else "aborted"

    def _replace(self, error: ClientError) -> None:
        assert isinstance(error, RejectedError | Timeout) or error.retriable, repr(error)
        self.producer.close()
        self._note_acknowledged()
        self.producer = self._made()

    # -- the run

    def run(self) -> None:
        self._next_fault()
        self._next_count()
        until = self.world.now + FAULTS_S
        while self.world.now < until:
            self._step()
            self.cluster.pass_time(self.world.random.choice((0.001, 0.02, 0.1, 0.5)))
        self._calm()
        self._check_progress()
        self.producer.close()
        self.check()

    def _check_progress(self) -> None:
        """(f): an error that is left over may be met first."""
        for _ in range(PROGRESS_TRIES):
            try:
                if self.kind == "transactional":
                    self._transact(commit=True)
                else:
                    self._send_some()
                    self._flush()
            except ClientError as error:
                self._replace(error)
                if isinstance(error, RejectedError) and error.code in REFUSED:
                    return
            else:
                return
        raise AssertionError(f"{PROGRESS_TRIES} tries without an acknowledgement")

    # -- what has come of it

    def check(self) -> None:
        for key in KEYS:
            log: Any = self.brokers.leads[key].log
            found = [uid for _, uid in log.records()]
            times, read = Counter(found), set(log.committed())
            for row in self.batches[key]:
                self._check_batch(key, row, times, read)
            self._check_counts(key, times)
            if self.kind != "plain":
                twice = [uid for uid, count in times.items() if count > 1]
                assert not twice, f"{key}: {twice[:5]} are twice in the log"
            if self.kind != "plain" or self.in_flight == 1:
                self._check_order(key, list(dict.fromkeys(found)))

    def _check_batch(
        self, key: Key, row: SentBatchRow, times: Counter[int], read: set[int]
    ) -> None:
        there = [uid for uid in row.uids if times[uid]]
        assert there in ([], list(row.uids)), f"{key}: {row} is there in part: {there}"
        if self.flushed.intersection(row.uids):
            assert there, f"{key}: {row} was flushed, and is not in the log"
        if len(row.uids) >= self.brokers.too_large or self.brokers.poisoned.intersection(row.uids):
            assert not there, f"{key}: {row} is in the log, although brokers do not take it"
        outcome, is_read = self.outcomes.get(row.transaction, ""), row.uids[0] in read
        if outcome == "committed":
            assert is_read, f"{key}: {row} was committed, and is not read"
        elif outcome == "aborted":
            assert not is_read, f"{key}: {row} was aborted, and is read"

    def _check_counts(self, key: Key, times: Counter[int]) -> None:
        for number in range(self.number + 1):
            mine = [row for row in self.batches[key] if row.producer == number]
            there = sum(1 for row in mine for uid in row.uids if times[uid])
            counted = self.acknowledged[number, key]
            assert there >= counted, f"{key}: {counted} counted, {there} in the log"

    def _check_order(self, key: Key, found: list[int]) -> None:
        of = {uid: row.producer for row in self.batches[key] for uid in row.uids}
        for number in range(self.number + 1):
            mine = [uid for uid in found if of[uid] == number]
            assert mine == sorted(mine), f"{key}: producer {number} is out of order"

    def drop(self) -> None:
        """The simulation is over."""
        self.producer.close()
        for link in self.cluster.links:
            link.close()
        self.cluster.close()


def simulate(seed: int) -> BatchSimulation:
    before = random.getstate()
    random.seed(seed)  # back-offs and the order of brokers
    made = None
    try:
        made = BatchSimulation(seed)
        made.run()
        return made
    finally:
        random.setstate(before)
        if made is not None:
            made.drop()
