"""Asks the owners of logs where old epochs end, for fetches that say their last epoch.

A follower says which epoch its log ends with, and a consumer may, too. The slot has the last two
epochs of the log; for older ones the fetch waits here for its owner's response, which the fetch
engine keeps. Whether this broker may serve the fetch, the engine has read in the slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import WireError
from kbroker.ipc import calls
from kbroker.ipc.process_table import Address
from kbroker.ipc.rpc import Rpc, run

if TYPE_CHECKING:
    from kbroker._ext.fetch.fetch_engine import EpochQuestion
    from kbroker._ext.network.net_loop import NetLoop

# BOUND: epochs of one call.
CALL_EPOCHS_MAX = 100


class EpochEnds:
    """Serves the epoch requests of the fetch engine of ``loop``."""

    def __init__(self, rpc: Rpc, io_workers: list[Address], loop: NetLoop) -> None:
        self._rpc = rpc
        self._io_workers = io_workers
        self._loop = loop

    def ask(self) -> None:
        """Called by the loop when there are questions."""
        by_owner: dict[Address, list[EpochQuestion]] = {}
        for question in self._loop.fetch.take_epoch_questions():
            owner = self._io_workers[question[0] % len(self._io_workers)]
            by_owner.setdefault(owner, []).append(question)
        for owner, asked in by_owner.items():
            for first in range(0, len(asked), CALL_EPOCHS_MAX):
                run(self._ask(owner, asked[first : first + CALL_EPOCHS_MAX]))

    async def _ask(self, owner: Address, asked: list[EpochQuestion]) -> None:
        """Raises nothing: a follower without a response asks again."""
        ends: list[tuple[int, int] | None] = [None] * len(asked)
        questions = [calls.EpochEndQuestion(slot, epoch, held=True) for slot, _, _, epoch in asked]
        try:
            epoch_ends = await self._rpc.call(
                owner, calls.OFFSET_FOR_LEADER_EPOCH, calls.Questions(questions)
            )
        except WireError:
            pass  # the owner is being restarted, or too busy
        else:
            for number, end in enumerate(epoch_ends.results[: len(asked)]):
                if end is not None:
                    ends[number] = end.leader_epoch, end.end_offset
        self._loop.put_epoch_ends(list(zip(asked, ends, strict=True)))
