"""Calls from a network process to the coordinators in the io workers, over the lanes.

Every call ends: with the response, with the coordinator's error, when its deadline passes, or when
the io worker is restarted; those whose repetition changes nothing are asked again then.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from functools import partial
from itertools import count

from kbroker._ext.shared.lane import Lane
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.lane_calls import (
    MSG_REQUEST,
    REPEATED,
    Assembler,
    LaneRequest,
    Response,
    is_express,
    request_parts,
    send_all,
    unpack,
)
from kbroker.ipc.rpc import Pending
from kbroker.security.principal import KafkaPrincipal
from kbroker.types import SlotId
from kbroker.workers.base import now_ms

logger = logging.getLogger(__name__)

# BOUND: deadlines of completed calls that are kept, beyond the number of calls in flight.
SPENT_DEADLINES_MAX = 1_000


class CoordinatorLink:
    """One per network process. lanes: to each io worker, by index."""

    def __init__(self, lanes: list[Lane]) -> None:
        self._lanes = lanes
        self._assemblers = [Assembler() for _ in lanes]
        # Messages to each io worker, sent at the end of the turn.
        self._outboxes: list[deque[bytes]] = [deque() for _ in lanes]
        self._peers = [lane.peer for lane in lanes]
        self._tokens = count(1)
        # token -> io worker index, outcome, and the request to repeat when the io worker dies
        self._calls: dict[int, tuple[int, Pending[bytes], LaneRequest | None]] = {}
        self._deadlines: list[tuple[int, int]] = []

    def call(
        self,
        slot: SlotId,
        slot_incarnation: int,
        api_key: int,
        version: int,
        body: bytes,
        client_id: str,
        client_host: str,
        principal: KafkaPrincipal,
        timeout_ms: int,
        quota: tuple[int, float] = (0, 0.0),
    ) -> Pending[bytes]:
        """Ask the coordinator of a slot; resolves to the body of the response, or a WireError.

        body: the request behind its header, in ``version``; the response is in it, too.
        quota: key and rate of its client's, for the time that the coordinator takes.
        """
        worker = slot % len(self._lanes)
        pending: Pending[bytes] = Pending()
        token = next(self._tokens)
        request = LaneRequest(
            token,
            slot,
            slot_incarnation,
            api_key,
            version,
            client_id,
            client_host,
            principal,
            body,
            quota,
        )
        self._outboxes[worker].extend(request_parts(request))  # may raise: nothing is kept then
        self._calls[token] = (worker, pending, request if api_key in REPEATED else None)
        heapq.heappush(self._deadlines, (now_ms() + timeout_ms, token))
        if len(self._deadlines) > 2 * len(self._calls) + SPENT_DEADLINES_MAX:
            # Most calls complete long before their deadline, which is an hour for a join.
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._calls]
            heapq.heapify(self._deadlines)
        return pending

    def on_response(self, worker: int, message: bytes) -> None:
        """Take a MSG_RESPONSE. What cannot be read is nobody's response: its call ends at its
        deadline.
        """
        assembler = self._assemblers[worker]
        try:
            for part in unpack(message):
                response = None if is_express(part) else assembler.response(part)
                if response is not None:
                    self._take(response)
        except ValueError as error:
            logger.error("io worker %d sent a response that is damaged: %s", worker, error)

    def _take(self, response: Response) -> None:
        known = self._calls.pop(response.token, None)
        if known is None:
            return  # given up already
        if response.error:
            text = response.body.decode("utf-8", "replace")
            known[1].resolve(error=WireError(ErrorCode(response.error), text))
        else:
            known[1].resolve(response.body)

    def flush(self) -> bool:
        """Send the calls of this turn; True if a lane is full: call again soon."""
        held_back = False
        for index, lane in enumerate(self._lanes):
            outbox = self._outboxes[index]
            if lane.peer != self._peers[index]:
                self._peers[index] = lane.peer
                self._fail_worker(index)
            if not send_all(outbox, partial(lane.send_message, MSG_REQUEST)):
                held_back = True
        return held_back

    def _fail_worker(self, index: int) -> None:
        """An io worker was restarted: fail all its calls, including partly sent ones.

        It is asked again, in its order, or ends.
        """
        outbox = self._outboxes[index]
        outbox.clear()
        gone = []
        for token, (worker, _, request) in self._calls.items():
            if worker != index:
                continue
            if request is None:
                gone.append(token)
            else:
                outbox.extend(request_parts(request))
        for token in gone:
            known = self._calls.pop(token, None)
            if known is not None:
                known[1].resolve(error=WireError(ErrorCode.NOT_COORDINATOR))

    def tick(self, now: int) -> None:
        """Fail calls whose deadline has passed."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, token = heapq.heappop(self._deadlines)
            known = self._calls.pop(token, None)
            if known is not None:
                # COMPAT: clients of groups fail permanently on REQUEST_TIMED_OUT; with this error
                # they look up the coordinator and retry.
                text = "the coordinator did not respond in time"
                known[1].resolve(error=WireError(ErrorCode.NOT_COORDINATOR, text))

    @property
    def waiting(self) -> int:
        """The number of calls in flight."""
        return len(self._calls)
