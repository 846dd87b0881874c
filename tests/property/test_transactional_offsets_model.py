"""Transactions of offsets alone, with their two coordinators in different processes.

One producer commits offsets in one transaction after the other, back to back, in either protocol.
The questions of the offsets' partition, the markers of the transaction coordinator and the answers
of both travel in a mailbox for each direction: in their order, and as slowly as the seed says. So
the marker of a transaction may come between the question of the next one and its response.

What must hold: the producer is told nothing but success and what it may try again, and once all has
arrived the group's offset is that of the last committed transaction. The same where either
coordinator is loaded again at any moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from support.coordinators.offsets_host import OffsetsHost
from support.coordinators.transaction_host import ID, TransactionHost
from support.running.seeds import seeded

from kbroker.coordinator.partitioner import OFFSETS_TOPIC
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import WRITE_MARKERS, CallOperation
from kbroker.ipc.rpc import Pending

pytestmark = pytest.mark.property

TRANSACTIONS = 25
STEPS_MAX = 20_000
# What every producer tries again.
RETRIED = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
GROUP = "g"


class Run:
    def __init__(self, variant: int, protocol: int, faults: bool) -> None:
        self.random = seeded(variant)
        self.protocol = protocol
        self.faults = faults
        self.transactions = TransactionHost()
        self.transactions.add_topic(OFFSETS_TOPIC, 1)
        self.offsets = OffsetsHost()
        self.offsets.verify = self.ask_transactions  # type: ignore[method-assign]
        self.answer_at_once = self.transactions.rpc.call
        self.transactions.rpc.call = self.call_io_worker
        self.to_transactions: deque[Callable[[], None]] = deque()
        self.to_offsets: deque[Callable[[], None]] = deque()
        self.expected: int | None = None
        self.overtaken = 0  # markers between a request and its response
        self.asking = 0

    # -- between the two ---------------------------------------------------------------------

    def ask_transactions(
        self, transactional_id: str, producer_id: int, epoch: int, add: bool
    ) -> Pending:
        """A request of the offsets' partition."""
        answer = Pending()
        self.asking += 1

        def back(done: Pending) -> None:
            self.to_offsets.append(lambda: settle(done))

        def settle(done: Pending) -> None:
            self.asking -= 1
            answer.resolve(done.value, done.error)

        def ask() -> None:
            self.transactions.execute(
                lambda op: self.transactions.machine.verify(
                    op, transactional_id, producer_id, epoch, OFFSETS_TOPIC, 0, add
                )
            ).then(back)

        self.to_transactions.append(ask)
        return answer

    def call_io_worker(self, to: Any, operation: CallOperation[Any, Any], request: Any) -> Pending:
        """A call of the transaction coordinator."""
        if operation is not WRITE_MARKERS:
            return self.answer_at_once(to, operation, request)
        answer = Pending()

        def write() -> None:
            for _, producer_id, epoch, commit, *_ in request.markers:
                self.overtaken += self.asking > 0
                self.offsets.append_marker(producer_id, epoch, commit)
            self.to_transactions.append(lambda: answer.resolve([0] * len(request.markers)))

        self.to_offsets.append(write)
        return answer

    # -- time --------------------------------------------------------------------------------

    def step(self) -> None:
        """Deliver a message, or let a little time pass."""
        random = self.random
        if self.faults and random.random() < 0.01:
            random.choice((self.transactions, self.offsets)).reload()
        boxes = [box for box in (self.to_transactions, self.to_offsets) if box]
        if boxes and random.random() < 0.9:
            random.choice(boxes).popleft()()
        else:
            self.transactions.advance(random.choice((1, 30)))

    def wait(self, outcome: Pending) -> Any:
        """The response, or the error code if there is none."""
        for _ in range(STEPS_MAX):
            if outcome.done:
                break
            self.step()
        assert outcome.done, "a request was never answered"
        if outcome.error is None:
            return outcome.value
        assert isinstance(outcome.error, WireError), outcome.error
        return outcome.error.code

    def insist(self, send: Callable[[], Pending], code_of: Callable[[Any], int]) -> Any:
        """Retry until the response is no retriable error; returns the response."""
        while True:
            response = self.wait(send())
            code = response if isinstance(response, ErrorCode) else ErrorCode(code_of(response))
            if code not in RETRIED:
                assert code == ErrorCode.NONE, f"the producer is told {code.name}"
                return response
            for _ in range(self.random.randrange(4)):
                self.step()

    # -- the producer ------------------------------------------------------------------------

    def run(self) -> None:
        response = self.insist(self.transactions.send_init, lambda found: found.error_code)
        producer = response.producer_id, response.producer_epoch
        for number in range(TRANSACTIONS):
            commit = self.random.random() < 0.7
            producer = self.transaction(producer, number, commit)
            if commit:
                self.expected = number
            if self.random.random() < 0.2:  # or the next one follows at once
                self.settle()
        self.settle()

    def transaction(self, producer: tuple[int, int], number: int, commit: bool) -> tuple[int, int]:
        """The producer after the transaction."""
        second = self.protocol == 2
        if not second:
            self.insist(
                lambda: self.transactions.send_add_offsets(producer, GROUP),
                lambda found: found.error_code,
            )
        self.insist(
            lambda: self.offsets.send_in_transaction(
                number,
                transactional_id=ID,
                producer_id=producer[0],
                producer_epoch=producer[1],
                group=GROUP,
                version=5 if second else 4,
            ),
            lambda found: found.topics[0].partitions[0].error_code,
        )
        response = self.insist(
            lambda: self.transactions.send_end(producer, commit, 5 if second else 4),
            lambda found: found.error_code,
        )
        return (response.producer_id, response.producer_epoch) if second else producer

    def settle(self) -> None:
        """All messages in flight arrive."""
        while self.to_transactions or self.to_offsets:
            self.step()
        found = self.offsets.fetch(group=GROUP)[0]
        assert found == (-1 if self.expected is None else self.expected)


def run(variant: int, protocol: int, faults: bool) -> Run:
    made = Run(variant, protocol, faults)
    made.run()
    return made


@pytest.mark.parametrize("protocol", [1, 2])
def test_back_to_back_transactions_of_offsets_are_never_rejected(protocol: int) -> None:
    """A rejection here makes Java's producer fail permanently."""
    overtaken = sum(run(variant, protocol, False).overtaken for variant in range(30))
    assert overtaken or protocol == 1, "no marker came between a question and its answer"


@pytest.mark.parametrize("protocol", [1, 2])
def test_transactions_of_offsets_continue_over_crashes_of_both_coordinators(protocol: int) -> None:
    for variant in range(30):
        run(100 + variant, protocol, True)
