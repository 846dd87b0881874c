"""The same ACLs on this broker and on Apache Kafka 3.9.1: every request of every client gets the
same error codes, names and rights from both.

Clients are allowed one operation each, or denied one each; or all, none, by a prefix, from another
address. ``DIFFERENCES`` has what differs, and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from support.brokers.kafka_servers import SecuredKafka39
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing
from support.security.authorization_cases import Case, all_cases
from support.security.authorization_matrix import (
    ADMIN,
    PRINCIPALS,
    USERS,
    Answer,
    Side,
    common_versions,
)
from support.security.secured import JAAS, address_of

from kbroker.handlers import dispatch  # noqa: F401 - imports every handler
from kbroker.handlers.registry import announced
from kbroker.protocol.api import ApiKey
from kbroker.testing import Broker

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

CASES = list(all_cases())
# Of the others, a run of what is not slow has only the newest version of each API.
QUICK = (ADMIN, "nobody", "everything", "all_denied", "dominated", "may_topic_describe",
         "denied_topic_describe", "denied_group_read")  # fmt: skip
SASL = "listener.name.sasl_plaintext."


class Difference(NamedTuple):
    """The error codes of one case, of Kafka and of this broker; equal if the rest differs."""

    case: str
    kafka: set[int]
    ours: set[int]
    reason: str


FEATURES = (
    "the error of an update is that of the request, as in Kafka 4.3; 3.9 has it with the update"
)
GROUP_CONFIGS = "Kafka 3.9 has no configs of groups; these are the codes of 4.3"
REPEATED = (
    "Kafka repeats the error, or the name, for what the request names; clients read the first"
)
DIFFERENCES = [
    Difference(
        "fetch as a follower", {0, 6}, {0},
        "Kafka rejects a follower that is not a replica; here it is served, and counts for nothing",
    ),
    Difference("create automatically", {0, 3}, {0}, "the response here waits for the topic"),
    Difference("cancel reassignments", {31}, {31}, REPEATED),
    Difference("list reassignments", {31}, {31}, REPEATED),
    Difference("describe a user", {31}, {31}, REPEATED),
    Difference("set features", {0, 95}, {95}, FEATURES),
    Difference(
        "committed offsets", {0}, {0, 30},
        "in version 1 the error has a place with the partitions only; Kafka 3.9 loses it there",
    ),
    *(
        Difference(
            "describe groups", codes, codes,
            "groups have the operations DescribeConfigs and AlterConfigs, as in Kafka 4.3",
        )
        for codes in ({0}, {0, 30})
    ),
    Difference(
        "join a consumer group", {0}, {29},
        "topics that a member names are checked, as in Kafka 4.3",
    ),
    *(
        Difference(f"{what} of a group", {42}, codes, GROUP_CONFIGS)
        for what in ("configs", "set configs", "change configs")
        for codes in ({0}, {30})
    ),
]  # fmt: skip


class Sides(NamedTuple):
    kafka: Side
    ours: Side


def settings_of_broker() -> dict[str, str]:
    entries = " ".join(f'user_{name}="{word}"' for name, word in USERS.items())
    return {
        "broker.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        f"{SASL}plain.sasl.jaas.config": JAAS.format(entries),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ADMIN}",
        "delegation.token.master.key": "secret of tokens",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        "group.initial.rebalance.delay.ms": "0",
    }


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings_of_broker()) as started:
        yield started


@pytest.fixture(scope="module")
def sides(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    with SecuredKafka39(tmp_path_factory.mktemp("kafka"), USERS, ADMIN) as kafka:
        addresses = ("127.0.0.1", kafka.secured_port), address_of(broker, "SASL_PLAINTEXT")
        made = Sides(*(Side(address, PRINCIPALS) for address in addresses))
        yield made
        for side in made:
            side.close()
        kafka.kill()  # a shutdown in order may take it a minute


class Found(NamedTuple):
    """Different answers to a client."""

    version: int
    principal: str
    kafka: Answer
    ours: Answer

    def is_that(self, case: Case, row: Difference) -> bool:
        return case.name == row.case and (self.kafka.codes, self.ours.codes) == row[1:3]


def differing(sides: Sides, case: Case, principals: Sequence[str], every: bool) -> list[Found]:
    """All different answers."""
    found = []
    for version in common_versions(case, *sides, all_versions=every):
        for principal in principals:
            kafka, ours = (side.ask(case, version, principal) for side in sides)
            if kafka != ours:
                found.append(Found(version, principal, kafka, ours))
    return found


def unexplained(sides: Sides, case: Case, principals: Sequence[str], every: bool) -> list[Found]:
    return [
        one
        for one in differing(sides, case, principals, every)
        if not any(one.is_that(case, row) for row in DIFFERENCES)
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_some_clients_get_the_same_answer(sides: Sides, case: Case) -> None:
    assert unexplained(sides, case, QUICK, every=False) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_client_gets_the_same_answer_in_every_version(sides: Sides, case: Case) -> None:
    assert unexplained(sides, case, PRINCIPALS, every=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: f"{row.case} {sorted(row.ours)}")
def test_every_difference_is_still_one(sides: Sides, row: Difference) -> None:
    """Else its line must go."""
    (case,) = (case for case in CASES if case.name == row.case)
    found = differing(sides, case, PRINCIPALS, every=True)
    assert any(one.is_that(case, row) for one in found), row.reason


def test_every_api_that_both_have_is_asked(sides: Sides) -> None:
    both = {key for key, *_ in announced()} & sides.kafka.versions.keys()
    assert both - {case.key for case in CASES} == {ApiKey.SASL_AUTHENTICATE}
    for case in CASES:
        assert common_versions(case, *sides, all_versions=False), case.name
