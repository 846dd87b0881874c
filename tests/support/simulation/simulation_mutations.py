"""Faults that are put into the client on purpose, each of which its simulation must find: what the
simulation is worth.

    python tests/support/simulation/simulation_mutations.py           each, and its first seed
    python tests/support/simulation/simulation_mutations.py renewed   those with that in their names
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.simulation.seed_runs import SIMULATIONS, cheaply

SEEDS = 600  # one more fault than the 400 of `make test-all` find is found by seed 553
CONSUMER = "kbroker.client.consumer."
PRODUCER = "kbroker.client.producer."
BATCHES = "kbroker.client.batches."


class Edit(NamedTuple):
    """place: ``module:function`` or ``module:Class.method``. old: text of it, which occurs once."""

    place: str
    old: str
    new: str


class Mutation(NamedTuple):
    """says: what is in the failure, so that it is the one that is meant."""

    name: str
    edits: list[Edit]
    says: str = ""
    simulation: str = "consumers"


CONSUMERS = [
    Mutation(
        "(a) what an old leader has sent is returned",
        [Edit(CONSUMER + "fetcher:Fetcher.adopt_metadata", "part.fetch_again()", "pass")],
    ),
    Mutation(
        "(a) nothing waits until a position is compared",
        [
            Edit(CONSUMER + "partitions:ReadPartition.may_return", "or self.validating", ""),
            Edit(CONSUMER + "partitions:ReadPartition.may_fetch", "and not self.validating", ""),
            Edit(CONSUMER + "fetcher:Fetcher.adopt_metadata", "part.fetch_again()", "pass"),
        ],
    ),
    Mutation(
        "(a) a late answer to a fetch is taken although the position has moved",
        [
            Edit(
                CONSUMER + "fetch_node:FetchedFrom.holds",
                "self.part.version == self.version and self.part.fetch_offset == self.offset",
                "True",
            )
        ],
    ),
    Mutation(
        "(b) a recreated topic is read from where the former one was left",
        [Edit(CONSUMER + "positions:Positions.leave", "self.out_of_range(part, error)", "pass")],
    ),
    Mutation(
        "(b) reading begins behind the committed offset",
        [
            Edit(
                CONSUMER + "positions:Positions._take_committed",
                "part.seek(row.offset,",
                "part.seek(row.offset + 1,",
            )
        ],
        "begins at",
    ),
    Mutation(
        "(b) an error about committed offsets is taken for none",
        [
            Edit(
                CONSUMER + "positions:Positions._take_committed",
                "self._failed(part, error)",
                "self._reset(part)",
            )
        ],
    ),
    Mutation(
        "(c) a refused commit is told as success",
        [
            Edit(
                CONSUMER + "commits:_error",
                "if code in _LOST:\n                raise CommitFailed(code, what, LOST_WORDS)",
                "if code in _LOST:\n                return 0",
            )
        ],
        "told success",
    ),
    Mutation(
        "(c) partitions are read on while they are given up",
        [
            Edit(
                CONSUMER + "membership:ConsumerMembership._begin",
                "pending_revocation = True",
                "pending_revocation = False",
            )
        ],
        "is given up",
    ),
    Mutation(
        "(c) a commit is of whom the member is when it is sent",
        [
            Edit(
                CONSUMER + "commits:ConsumerCommits.commit",
                "commit(cluster, self.group, offsets, sender,",
                "who = self._committer.identity(); "
                "commit(cluster, self.group, offsets, _Sender(who, self._committer, offsets),",
            )
        ],
        "was made",
    ),
    Mutation(
        "(c) renewed is always true",
        [
            Edit(
                CONSUMER + "consumer_member:ConsumerMember.renewed",
                "if any(self._owned_since.get(key, FOREVER) > was.generation for key in keys):",
                "if False:",
            )
        ],
        "was made",
    ),
    Mutation(
        "(d) an automatic commit that is under way wakes",
        [
            Edit(
                CONSUMER + "core:Core._due_in",
                "if self._auto_commit and not self._is_committing:",
                "if self._auto_commit:",
            )
        ],
        "in a second",
    ),
    Mutation(
        "(e) a partition without a leader is not asked about again",
        [
            Edit(
                CONSUMER + "fetcher:Fetcher._rejected",
                "if code in _MOVED:\n        part.fetch_later(self._retries, now)",
                "if code in _MOVED:\n        part.retry_at = float('inf')",
            )
        ],
    ),
    Mutation(
        "(e) a leader that does not respond holds the questions to others",
        [
            Edit(
                CONSUMER + "positions:Positions._run", "self._lanes.of(leader)", "self._lanes.of(0)"
            )
        ],
        "is not returned",
    ),
    Mutation(
        "(a) records of aborted transactions are returned",
        [Edit(CONSUMER + "fetcher:Fetcher._take_row", "aborted if self._isolation else ()", "()")],
    ),
    Mutation(
        "(a) records of open transactions are asked for",
        [Edit(CONSUMER + "fetcher:Fetcher._request", "self._isolation", "0")],
        "is not committed",
    ),
    Mutation(
        "(a) a paused partition is returned",
        [Edit(CONSUMER + "partitions:ReadPartition.may_return", "self.paused", "False")],
        "is paused",
    ),
    Mutation(
        "(a) what was set aside is forgotten",
        [
            Edit(
                CONSUMER + "fetched_sets:FetchedSets.resumed",
                "self._ready.extendleft(reversed(self._set_aside))",
                "pass",
            )
        ],
        "is returned, and not",
    ),
    Mutation(
        "(a) what a cancelled call has read is forgotten",
        [Edit(CONSUMER + "collector:FetchCollector.keep", "self._kept = _Kept(", "_Kept(")],
        "is returned, and not",
    ),
    Mutation(
        "(c) what a cancelled call has read is committed",
        [
            Edit(
                CONSUMER + "collector:FetchCollector.keep",
                "part.position, part.epoch = row.position, row.epoch",
                "pass",
            )
        ],
        "Accepted",
    ),
    Mutation(
        "(a) what an interrupted call has read is lost",
        [Edit(CONSUMER + "collector:FetchCollector.undo", "self._move_back(before)", "pass")],
        "is returned, and not",
    ),
    Mutation(
        "(a) a seek keeps what was fetched",
        [Edit(CONSUMER + "partitions:ReadPartition._forget", "self.version += 1", "pass")],
    ),
    Mutation(
        "(a) the epoch of a position stays that of its first record",
        [Edit(CONSUMER + "collector:_advance", "part.epoch = epoch", "pass")],
        "was returned twice",
    ),
    Mutation(
        "(b) a reset goes to the end",
        [Edit(CONSUMER + "positions:Positions._reset", "part.reset = EARLIEST", "part.reset = -1")],
    ),
    Mutation(
        "(b) a committed offset is not compared with the log",
        [
            Edit(
                CONSUMER + "positions:Positions._take_committed",
                "part.seek(row.offset, row.leader_epoch)",
                "part.seek(row.offset)",
            )
        ],
    ),
    Mutation(
        "(e) what is out of range is not looked up",
        [
            Edit(
                CONSUMER + "fetcher:Fetcher._rejected",
                "if part.fetch_offset != part.position:",
                "if True:",
            )
        ],
        "Record(",
    ),
]
PRODUCERS = [
    Mutation(
        "(a) what was in flight on a lost connection is forgotten",
        [
            Edit(
                BATCHES + "sender:BatchSender._on_lost",
                "self._retry_or_fail(batch, error, unsure=True)",
                "pass",
            )
        ],
        "not ended",
    ),
    Mutation(
        "(a) an expired batch does not end",
        [Edit(BATCHES + "sender:BatchSender._on_expired", "self._fail(batch,", "(batch,")],
        "not ended",
    ),
    Mutation(
        "(b) what may have been appended is sent under another number",
        [
            Edit(
                BATCHES + "sender:BatchSender._take_row",
                "error.code in OUT_OF_STEP",
                "error.code in (*OUT_OF_STEP, ErrorCode.REQUEST_TIMED_OUT)",
            )
        ],
        "twice in the log",
    ),
    Mutation(
        "(b) an older batch is not waited for before others get new numbers",
        [
            Edit(
                BATCHES + "sender:BatchSender._resume_sequence",
                "if not self._loop.is_oldest(batch) or not self._loop.is_alone(batch):",
                "if False:",
            )
        ],
    ),
    Mutation(
        "(b) a rejection is told as success",
        [
            Edit(
                BATCHES + "sender:BatchSender._take_row",
                "(ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)",
                "(ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS)",
            )
        ],
        "was acknowledged, and",
    ),
    Mutation(
        "(c) a batch that is sent again does not wait for older ones",
        [
            Edit(
                BATCHES + "sender:BatchSender._put_back",
                "self._loop.put_back(batch, pause)",
                "self._loop.rewrite(batch); self._loop.put_back(batch, pause)",
            )
        ],
    ),
    Mutation(
        "(d) every error is told as a refusal for good",
        [
            Edit(
                BATCHES + "sender:BatchSender._on_lost",
                "self._retry_or_fail(batch, error, unsure=True)",
                "self._fail(batch, RejectedError(ErrorCode.INVALID_RECORD, 'x'))",
            )
        ],
        "is in the log, although",
    ),
    Mutation(
        "(e) a transaction is committed without a record that has failed",
        [
            Edit(
                BATCHES + "sender:BatchSender._break_transaction",
                "self._transaction_failed(error)",
                "pass",
            )
        ],
        "was committed, and has failed",
    ),
    Mutation(
        "(e) after an abort late records belong to the next transaction",
        [
            Edit(
                BATCHES + "transactions:abort_transaction",
                "return after if sure or identity.implicit else None",
                "return after",
            )
        ],
    ),
    Mutation(
        "(f) a gap of an aborted transaction stays in the numbers",
        [Edit(BATCHES + "sender:BatchSender._fail", "elif batch.producer[2] >= 0:", "elif False:")],
    ),
    Mutation(
        "(f) an abort that is repeated fences the producer itself",
        [
            Edit(
                PRODUCER + "identity:ProducerSession.abort",
                "if not self._outdated and self.told:",
                "if self.told:",
            )
        ],
        "PRODUCER_FENCED",
    ),
    Mutation(
        "(f) the leader is not asked for again",
        [
            Edit(
                BATCHES + "producer_metadata:ProducerMetadata._start",
                "self.clock() < self.next_at",
                "self.clock() < self.next_at + 100",
            )
        ],
    ),
]
WHOLE_BATCHES = [
    Mutation(
        "(b) a flush does not wait for everything",
        [Edit(BATCHES + "produce:BatchProducer.flush", "while self._pool.used_bytes:", "if True:")],
        "was not flushed",
    ),
    Mutation(
        "(b) what failed is counted as acknowledged",
        [Edit(BATCHES + "produce:BatchProducer._count_batch", "if batch.failed:", "if False:")],
    ),
    Mutation(
        "(c) newer batches do not wait for one that is sent again",
        [
            Edit(
                BATCHES + "sender:BatchSender._put_back",
                "self._loop.put_back(batch, pause)",
                "self.later(pause, lambda: self._loop.put_back(batch, 0.0))",
            )
        ],
        "is out of order",
    ),
    Mutation(
        "(d) a batch that is too large is cut",
        [Edit(BATCHES + "sender:BatchSender._may_split", "self.splits and ", "")],
    ),
    Mutation(
        "(e) a transaction is committed although a batch has failed",
        [Edit(BATCHES + "produce:BatchProducer._fail", "self._error or error", "None")],
        "was committed, and",
    ),
    Mutation(
        "(f) after an abort in doubt the next transaction has the same epoch",
        [
            Edit(
                BATCHES + "transactions:abort_transaction",
                "return after if sure or identity.implicit else None",
                "return after",
            )
        ],
        "a gap",
    ),
    Mutation(
        "(f) the leader is not asked for again",
        [
            Edit(
                BATCHES + "driven_sender:DrivenSender._put_back",
                "self._cluster.forget_topic(batch.topic)",
                "pass",
            ),
            Edit(
                BATCHES + "driven_sender:SharedMetadata._begin",
                "self._refresh(names)",
                "self._ended(names, None, None)",
            ),
        ],
        "without an acknowledgement",
    ),
]
MUTATIONS = [
    *CONSUMERS,
    *(one._replace(simulation="producers") for one in PRODUCERS),
    *(one._replace(simulation="batches") for one in WHOLE_BATCHES),
]


@contextmanager
def edited(one: Edit) -> Iterator[None]:
    """The client with this difference."""
    name, _, path = one.place.partition(":")
    module = importlib.import_module(name)
    *owners, last = path.split(".")
    owner: Any = module
    for step in owners:
        owner = getattr(owner, step)
    before = inspect.getattr_static(owner, last)
    plain: Callable[..., Any] = before.fget if isinstance(before, property) else before
    source = textwrap.dedent(inspect.getsource(getattr(plain, "__func__", plain)))
    assert source.count(one.old) == 1, f"{one.place} has {source.count(one.old)} times {one.old!r}"
    # Within a function whose ``__class__`` it sees, as ``super()`` has it from a class. In there, a
    # function of the module with the method's name would be hidden.
    source = source.replace(one.old, one.new).replace(f"def {last}(", "def edited_one(", 1)
    code = (
        "from __future__ import annotations\ndef made(__class__):\n"
        + textwrap.indent(source, "    ")
        + "\n    return edited_one"
    )
    made: dict[str, Any] = {}
    exec(compile(code, one.place, "exec"), vars(module), made)
    setattr(owner, last, made["made"](owner))
    try:
        yield
    finally:
        setattr(owner, last, before)


@contextmanager
def mutated(one: Mutation) -> Iterator[None]:
    """The client with that fault."""
    with ExitStack() as stack:
        for edit in one.edits:
            stack.enter_context(edited(edit))
        yield


def found_by(one: Mutation, seeds: int = SEEDS) -> tuple[int, str] | None:
    """The first seed that fails as it should, and what it says; None: the mutation is not found."""
    with cheaply(), mutated(one):
        for seed in range(seeds):
            try:
                SIMULATIONS[one.simulation](seed)
            except AssertionError as error:
                if one.says in str(error):
                    return seed, str(error)
    return None


def main() -> int:
    """The command."""
    words = sys.argv[1:]
    missed = 0
    for one in MUTATIONS:
        if all(word in f"{one.simulation} {one.name}" for word in words):
            found = found_by(one)
            missed += found is None
            said = "NOT FOUND" if found is None else f"seed {found[0]}: {found[1][:120]}"
            print(f"{one.simulation} {one.name}: {said}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
