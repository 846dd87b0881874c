"""The log of verdicts: Kafka's words, and a bound on what clients can have written there."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest
from support.security.authorizers import deny_names

from kbroker.security.access import AccessTable
from kbroker.security.audit import INTERVAL_S, LINES_MAX, Audit
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import KafkaPrincipal

pytestmark = pytest.mark.unit

ALICE, HOST = KafkaPrincipal("User", "alice"), "192.0.2.1"
LINE = (
    "Principal = User:alice is Denied Operation = Read from host = 192.0.2.1 on resource = "
    "Topic:LITERAL:t for request = Fetch with resourceRefCount = 1"
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def deny(audit: Audit, names: Iterable[str], principal: KafkaPrincipal = ALICE) -> None:
    audit.verdicts(principal, HOST, AclOperation.READ, Kind.TOPIC, names, (), "Fetch")


def test_denial_is_logged_in_kafkas_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    deny(Audit(), ["t"])

    assert caplog.messages == [LINE]


def test_repeated_denial_is_logged_once_in_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    audit = Audit(clock)

    for _ in range(5):
        deny(audit, ["t"])
    clock.now += INTERVAL_S
    deny(audit, ["t"])

    assert caplog.messages == [LINE, LINE + " (5 times)"]


def test_denials_of_invented_names_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    audit = Audit(clock)

    deny(audit, (f"t{n}" for n in range(LINES_MAX + 50)))
    deny(audit, ["t"], KafkaPrincipal("User", "bob"))
    assert len(caplog.messages) == LINES_MAX + 1
    clock.now += INTERVAL_S
    deny(audit, ["t"])

    assert "50 more lines" in caplog.messages[-2]
    assert caplog.messages[-1] == LINE


def test_denied_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    deny(Audit(), ["t\nPrincipal = User:admin is Allowed"])

    (line,) = caplog.messages
    assert "\n" not in line


def test_what_is_merely_hidden_is_no_denial(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    access = AccessTable(deny_names("t")).of(ALICE, HOST)

    access.allowed(AclOperation.DESCRIBE, Kind.TOPIC, ["t", "u"], "Metadata", is_filter=True)
    access.operations(Kind.TOPIC, "t")
    assert caplog.messages == []

    access.allowed(AclOperation.READ, Kind.TOPIC, ["t", "u"], "Fetch")
    assert caplog.messages == [LINE]


def test_everything_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kbroker.security.audit")
    access = AccessTable(deny_names("t")).of(ALICE, HOST)

    for _ in range(2):
        access.allowed(AclOperation.READ, Kind.TOPIC, ["t", "u"], "Fetch", is_filter=True)

    allowed = LINE.replace("Denied", "Allowed").replace(":t ", ":u ")
    assert caplog.messages == [LINE, allowed] * 2
