"""When a broker counts as gone, and when others have to agree: the rules alone."""

from __future__ import annotations

import pytest

from kbroker.peers.evidence import (
    ATTEMPT_LATER_MS,
    ATTEMPT_MS,
    HURRIED_ATTEMPTS,
    REFUSED_MS,
    ROUNDS,
    Attempt,
    Hearing,
    Inquiry,
    InquiryOutcome,
    PeerEvidence,
)

pytestmark = pytest.mark.unit

REFUSED, REACHED, OTHER = Attempt.REFUSED, Attempt.REACHED, Attempt.OTHER


def connected() -> PeerEvidence:
    evidence = PeerEvidence()
    evidence.attempted(REACHED, 0, 7)
    return evidence


def refused(evidence: PeerEvidence, *times_ms: int) -> None:
    for now_ms in times_ms:
        evidence.attempted(REFUSED, now_ms)


def test_closed_connection_and_three_refusals_are_evidence() -> None:
    evidence = connected()
    evidence.closed(1_000)
    refused(evidence, 1_000, 1_100, 1_200)
    assert evidence.is_gone
    assert (evidence.hearing, evidence.closed_ms, evidence.epoch) == (Hearing.GONE, 1_000, 7)


def test_two_refusals_are_none() -> None:
    evidence = connected()
    evidence.closed(1_000)
    refused(evidence, 1_000, 1_300)
    assert not evidence.is_gone
    assert evidence.hearing is Hearing.UNKNOWN


def test_three_refusals_in_a_moment_are_none() -> None:
    """A broker that is restarted by a supervisor does not listen for as long."""
    evidence = connected()
    evidence.closed(1_000)
    refused(evidence, 1_000, 1_001, 1_000 + REFUSED_MS - 1)
    assert not evidence.is_gone
    refused(evidence, 1_000 + REFUSED_MS)
    assert evidence.is_gone


@pytest.mark.parametrize("between", [OTHER, REACHED])
def test_refusals_must_follow_each_other(between: Attempt) -> None:
    evidence = connected()
    evidence.closed(1_000)
    refused(evidence, 1_000, 1_100)
    evidence.attempted(between, 1_150, 8)
    refused(evidence, 1_200, 1_300)
    assert not evidence.is_gone


def test_refusals_without_a_connection_before_are_no_evidence_but_agree_with_others() -> None:
    """It was never reached from here: a firewall may always have been in between."""
    evidence = PeerEvidence()
    refused(evidence, 0, 100, 200)
    assert not evidence.is_gone
    assert evidence.hearing is Hearing.GONE


def test_whatever_else_happens_is_no_evidence_however_often() -> None:
    evidence = connected()
    evidence.closed(1_000)
    for number in range(HURRIED_ATTEMPTS):
        assert not evidence.is_unclear
        evidence.attempted(OTHER, 1_000 + number * ATTEMPT_MS)
    assert (evidence.is_gone, evidence.is_unclear) == (False, True)
    assert evidence.hearing is Hearing.UNKNOWN


def test_broker_that_is_back_is_not_gone() -> None:
    evidence = connected()
    evidence.closed(1_000)
    refused(evidence, 1_000, 1_100, 1_200)
    evidence.attempted(REACHED, 2_000, 9)
    assert (evidence.is_gone, evidence.hearing, evidence.epoch) == (False, Hearing.HEARS, 9)
    evidence.closed(3_000)
    assert not evidence.is_gone, "the refusals were those of the last time"


def test_attempts_are_quick_until_there_is_evidence_or_hardly_any_will_be() -> None:
    evidence = connected()
    evidence.closed(0)
    assert evidence.delay_ms == ATTEMPT_MS
    refused(evidence, 0, 100, 200)
    assert evidence.delay_ms == ATTEMPT_LATER_MS
    evidence.attempted(REACHED, 300)
    evidence.closed(400)
    for number in range(HURRIED_ATTEMPTS):
        assert evidence.delay_ms == ATTEMPT_MS
        evidence.attempted(OTHER, 400 + number)
    assert evidence.delay_ms == ATTEMPT_LATER_MS


# -- inquiries --


def inquire(others: list[int], gone: set[int] = frozenset()) -> Inquiry:  # type: ignore[assignment]
    return Inquiry(others, gone.__contains__)


def test_all_others_have_to_agree() -> None:
    inquiry = inquire([1, 2])
    assert inquiry.outcome is None
    assert inquiry.next_round() == [1, 2]
    inquiry.answered(1, Hearing.GONE)
    assert inquiry.outcome is None
    inquiry.answered(2, Hearing.GONE)
    assert inquiry.outcome is InquiryOutcome.CONFIRMED
    assert inquiry.agreeing == [1, 2]


def test_one_that_hears_from_it_is_a_veto() -> None:
    """The network between two of three has failed."""
    inquiry = inquire([1, 2])
    inquiry.next_round()
    inquiry.answered(1, Hearing.GONE)
    inquiry.answered(2, Hearing.HEARS)
    assert (inquiry.outcome, inquiry.vetoes) == (InquiryOutcome.VETOED, [2])


def test_nobody_else_is_there_to_ask() -> None:
    assert inquire([]).outcome is InquiryOutcome.CONFIRMED


def test_one_that_is_gone_too_is_not_asked() -> None:
    """Two of three were killed at once."""
    gone: set[int] = set()
    inquiry = inquire([1], gone)
    assert inquiry.next_round() == [1]
    inquiry.silent(1)
    assert inquiry.outcome is None
    gone.add(1)
    assert inquiry.outcome is InquiryOutcome.CONFIRMED


def test_who_does_not_know_yet_is_asked_again() -> None:
    inquiry = inquire([1, 2])
    inquiry.next_round()
    inquiry.answered(1, Hearing.UNKNOWN)
    inquiry.answered(2, Hearing.GONE)
    assert inquiry.outcome is None
    assert inquiry.next_round() == [1]
    inquiry.answered(1, Hearing.GONE)
    assert inquiry.outcome is InquiryOutcome.CONFIRMED


def test_silent_one_cannot_be_asked_if_another_agrees() -> None:
    inquiry = inquire([1, 2])
    for _ in range(ROUNDS):
        assert inquiry.outcome is None
        inquiry.next_round()
        inquiry.answered(1, Hearing.GONE)
        inquiry.silent(2)
    assert inquiry.outcome is InquiryOutcome.CONFIRMED


@pytest.mark.parametrize("is_silent", [True, False])
def test_nothing_is_done_without_an_answer_of_anybody(is_silent: bool) -> None:
    """This broker may be the one that is cut off."""
    inquiry = inquire([1])
    for _ in range(ROUNDS):
        inquiry.next_round()
        inquiry.silent(1) if is_silent else inquiry.answered(1, Hearing.UNKNOWN)
    assert inquiry.outcome is InquiryOutcome.UNANSWERED


def test_one_that_never_knows_is_not_passed_over() -> None:
    inquiry = inquire([1, 2])
    for _ in range(ROUNDS):
        inquiry.next_round()
        inquiry.answered(1, Hearing.GONE)
        inquiry.answered(2, Hearing.UNKNOWN)
    assert inquiry.outcome is InquiryOutcome.UNANSWERED
