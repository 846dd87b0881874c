"""When a broker counts as gone before its session has ended, and who has to agree. Pure.

Evidence is what the kernel of a machine says whose broker has died: it closes the connections, and
refuses new ones, because nothing listens any more. Everything else is none: a timeout, a full
queue, a failed TLS handshake or login, a name that does not resolve, another program at the port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, IntEnum

# How many attempts in a row must be refused, and over how long a time.
REFUSALS, REFUSED_MS = 3, 200
# The time between attempts: at first, and later while there is no evidence or it lasts.
ATTEMPT_MS, ATTEMPT_LATER_MS = 100, 1_000
HURRIED_ATTEMPTS = 20
# A request that a broker has sent before it died may be served a little after its connections were
# found closed.
STILL_SERVED_MS = 100

NO_EPOCH = -1


class Attempt(Enum):
    """How an attempt to reach a broker ended: ``OTHER`` says nothing of whether it lives."""

    REACHED = "reached"
    REFUSED = "refused"
    OTHER = "other"


class Hearing(IntEnum):
    """Whether a broker hears from another one, as on the wire."""

    UNKNOWN = 0  # it has no answer, or not yet
    HEARS = 1
    GONE = 2


class PeerEvidence:
    """What this broker knows of another one from its own attempts to reach it.

    Every attempt is reported by ``attempted``, and the end of a connection that was made by
    ``closed``. epoch: of the registration that was reached last, NO_EPOCH if the broker could not
    say. closed_ms: when the last connection ended; None while there is one, and before the first.
    """

    def __init__(self) -> None:
        self.epoch = NO_EPOCH
        self.closed_ms: int | None = None
        self.is_connected = False
        self._first_refusal_ms = self._last_refusal_ms = 0
        self._refusals = 0
        self._attempts = 0  # since the last connection ended

    def attempted(self, how: Attempt, now_ms: int, epoch: int = NO_EPOCH) -> None:
        """An attempt has ended."""
        self._attempts += 1
        if how is Attempt.REFUSED:
            if not self._refusals:
                self._first_refusal_ms = now_ms
            self._refusals += 1
            self._last_refusal_ms = now_ms
            return
        self._refusals = 0
        if how is Attempt.REACHED:
            self.is_connected, self.closed_ms, self.epoch = True, None, epoch
            self._attempts = 0

    def closed(self, now_ms: int) -> None:
        """The connection has ended, whoever closed it."""
        self.is_connected = False
        self.closed_ms = now_ms
        self._refusals = self._attempts = 0

    @property
    def is_refused(self) -> bool:
        """Whether nothing listens there."""
        if self.is_connected or self._refusals < REFUSALS:
            return False
        return self._last_refusal_ms - self._first_refusal_ms >= REFUSED_MS

    @property
    def is_gone(self) -> bool:
        """Whether there is evidence: it was connected, is not, and nothing listens there."""
        return self.closed_ms is not None and self.is_refused

    @property
    def is_unclear(self) -> bool:
        """Whether it was connected and cannot be reached, for a while by now, and is not refused:
        there will be no evidence soon.
        """
        return self.closed_ms is not None and self._attempts >= HURRIED_ATTEMPTS

    @property
    def hearing(self) -> Hearing:
        """What this broker says when another one asks. Nothing while attempts are under way."""
        if self.is_connected:
            return Hearing.HEARS
        return Hearing.GONE if self.is_refused else Hearing.UNKNOWN

    @property
    def delay_ms(self) -> int:
        """The time until the next attempt."""
        if self.is_refused or self._attempts >= HURRIED_ATTEMPTS:
            return ATTEMPT_LATER_MS
        return ATTEMPT_MS


class InquiryOutcome(Enum):
    """The end of an inquiry."""

    CONFIRMED = "confirmed"
    VETOED = "vetoed"
    UNANSWERED = "unanswered"


# How long a broker may take to answer, how often those are asked that have not said anything, and
# how long after the last time.
ANSWER_MS = 200
ROUNDS = 5
ROUND_MS = 60


class Inquiry:
    """Whether all other brokers that can be asked agree that one is gone.

    A single one that still hears from it is a veto: the network between two brokers has failed, and
    not a broker. One that does not answer in time cannot be asked; but if nobody can be, although
    there are others, this broker may be the one that is cut off.

    others: the brokers to ask. is_gone: whether this broker has evidence of one of these, too, by
    now; such a one is not asked.
    """

    def __init__(self, others: Iterable[int], is_gone: Callable[[int], bool]) -> None:
        self._answers: dict[int, Hearing] = dict.fromkeys(others, Hearing.UNKNOWN)
        self._silent: set[int] = set()
        self._is_gone = is_gone
        self._round = 0

    def next_round(self) -> list[int]:
        """Whom to ask now."""
        self._round += 1
        self._silent = set()
        return [b for b in self._living() if self._answers[b] is Hearing.UNKNOWN]

    def answered(self, broker_id: int, hearing: Hearing) -> None:
        self._answers[broker_id] = hearing

    def silent(self, broker_id: int) -> None:
        """There was no answer in time."""
        self._silent.add(broker_id)

    def _living(self) -> list[int]:
        return [broker_id for broker_id in self._answers if not self._is_gone(broker_id)]

    @property
    def vetoes(self) -> list[int]:
        """The brokers that still hear from it."""
        return [b for b, hearing in self._answers.items() if hearing is Hearing.HEARS]

    @property
    def agreeing(self) -> list[int]:
        return [b for b, hearing in self._answers.items() if hearing is Hearing.GONE]

    @property
    def outcome(self) -> InquiryOutcome | None:
        """None while another round may change it."""
        if self.vetoes:
            return InquiryOutcome.VETOED
        unknown = [b for b in self._living() if self._answers[b] is Hearing.UNKNOWN]
        if not unknown:
            return InquiryOutcome.CONFIRMED
        if self._round < ROUNDS:
            return None
        if self.agreeing and self._silent.issuperset(unknown):
            return InquiryOutcome.CONFIRMED
        return InquiryOutcome.UNANSWERED
