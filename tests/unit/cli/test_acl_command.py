"""``kbroker acl``: the ACLs that options stand for, as Kafka's tool has them."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest
from support.security.security_broker import SecurityBroker

from kbroker.cli import command

pytestmark = pytest.mark.unit

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
LITERAL, PREFIXED = 3, 4
ALL, READ, WRITE, CREATE, DESCRIBE, IDEMPOTENT_WRITE = 2, 3, 4, 5, 8, 12
DENY, ALLOW = 2, 3
ALICE = "User:alice"


@pytest.fixture
def broker() -> Iterator[SecurityBroker]:
    with SecurityBroker() as started:
        yield started


def acl(broker: SecurityBroker, *words: str) -> int:
    return command.main(["acl", *words, "--bootstrap-server", broker.bootstrap])


def test_operation_on_a_topic_from_any_host(broker):
    words = ["--allow-principal", ALICE, "--operation", "Read", "--topic", "orders"]

    assert acl(broker, "add", *words) == 0

    assert broker.acls == {(TOPIC, "orders", LITERAL, ALICE, "*", READ, ALLOW)}


def test_every_combination_is_an_acl(broker):
    words = ["--allow-principal", ALICE, "--allow-principal", "User:bob"]
    words += ["--allow-host", "10.0.0.1", "--allow-host", "10.0.0.2"]
    words += ["--deny-principal", "User:eve", "--operation", "describe-configs"]
    words += ["--topic", "logs-", "--group", "g", "--resource-pattern-type", "PREFIXED"]

    assert acl(broker, "add", *words) == 0

    assert broker.acls == {
        (kind, name, PREFIXED, who, host, 10, permission)
        for kind, name in ((TOPIC, "logs-"), (GROUP, "g"))
        for who, host, permission in (
            (ALICE, "10.0.0.1", ALLOW),
            (ALICE, "10.0.0.2", ALLOW),
            ("User:bob", "10.0.0.1", ALLOW),
            ("User:bob", "10.0.0.2", ALLOW),
            ("User:eve", "*", DENY),
        )
    }


def test_without_an_operation_all_are_meant(broker):
    assert acl(broker, "add", "--deny-principal", "User:*", "--cluster") == 0

    assert broker.acls == {(CLUSTER, "kafka-cluster", LITERAL, "User:*", "*", ALL, DENY)}


def test_producer_may_write_describe_and_create(broker):
    words = ["--allow-principal", ALICE, "--producer", "--topic", "orders"]

    assert acl(broker, "add", *words, "--transactional-id", "tx", "--idempotent") == 0

    wanted = [(TOPIC, "orders", each) for each in (WRITE, DESCRIBE, CREATE)]
    wanted += [(TRANSACTIONAL_ID, "tx", each) for each in (WRITE, DESCRIBE)]
    wanted += [(CLUSTER, "kafka-cluster", IDEMPOTENT_WRITE)]
    assert broker.acls == {
        (kind, name, LITERAL, ALICE, "*", each, ALLOW) for kind, name, each in wanted
    }


def test_consumer_may_read_topics_and_groups(broker):
    words = ["--allow-principal", ALICE, "--consumer", "--topic", "orders", "--group", "billing"]

    assert acl(broker, "add", *words) == 0

    assert broker.acls == {
        (TOPIC, "orders", LITERAL, ALICE, "*", READ, ALLOW),
        (TOPIC, "orders", LITERAL, ALICE, "*", DESCRIBE, ALLOW),
        (GROUP, "billing", LITERAL, ALICE, "*", READ, ALLOW),
    }


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--topic t", "who? Give --allow-principal or --deny-principal"),
        ("--allow-principal User:a", "name a resource: --topic, --group, --cluster, "),
        ("--allow-principal a --topic t", "--allow-principal 'a': write TYPE:NAME, such as User:a"),
        ("--deny-host 1.2.3.4 --topic t", "--deny-host is for --deny-principal, which is missing"),
        ("--allow-principal User:a --topic t --operation Raed", "no operation 'Raed'; did you "
         "mean Read?"),
        ("--allow-principal User:a --group g --operation Write", "--operation Write is none of a "
         "group: Read, Describe, Delete, "),
        ("--allow-principal User:a --producer --group g", "--producer needs --topic"),
        ("--allow-principal User:a --consumer --topic t", "--consumer needs --group"),
        ("--allow-principal User:a --producer --topic t --operation Read", "leave out --operation"),
        ("--deny-principal User:a --producer --topic t", "--producer and --consumer allow"),
        ("--allow-principal User:a --producer --topic t --cluster", "--cluster does not go with "
         "--producer"),
        ("--allow-principal User:a --topic t --idempotent", "--idempotent is for --producer"),
        ("--allow-principal User:a --topic=", "the name of a resource is empty"),
        ("--allow-principal User:a --topic t --resource-pattern-type any", "invalid choice: 'any'"),
    ],
)  # fmt: skip
def test_wrong_combination_is_one_line_and_nothing_is_added(broker, capsys, words, line):
    assert acl(broker, "add", *words.split()) == 2

    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1
    assert broker.acls == set()


@pytest.fixture
def filled(broker: SecurityBroker) -> SecurityBroker:
    broker.acls = {
        (TOPIC, "orders", LITERAL, ALICE, "*", READ, ALLOW),
        (TOPIC, "ord", PREFIXED, ALICE, "*", WRITE, ALLOW),
        (TOPIC, "*", LITERAL, "User:eve", "*", ALL, DENY),
        (GROUP, "orders", LITERAL, ALICE, "*", READ, ALLOW),
    }
    return broker


def listed(capsys: pytest.CaptureFixture[str]) -> set[tuple[str, str, str]]:
    rows = json.loads(capsys.readouterr().out)
    return {(row["resource_type"], row["name"], row["pattern"]) for row in rows}


def test_acls_are_listed_by_resource_and_principal(filled, capsys):
    assert acl(filled, "list", "-o", "json") == 0
    assert len(listed(capsys)) == 4

    assert acl(filled, "list", "-o", "json", "--topic", "orders") == 0
    assert listed(capsys) == {("TOPIC", "orders", "LITERAL")}

    match = ["--resource-pattern-type", "match"]
    assert acl(filled, "list", "-o", "json", "--topic", "orders", *match) == 0
    assert listed(capsys) == {
        ("TOPIC", "orders", "LITERAL"),
        ("TOPIC", "ord", "PREFIXED"),
        ("TOPIC", "*", "LITERAL"),
    }

    assert acl(filled, "list", "-o", "json", "--principal", "User:eve") == 0
    assert listed(capsys) == {("TOPIC", "*", "LITERAL")}


def test_table_has_the_words_of_kafka(filled, capsys):
    acl(filled, "list", "--group", "orders")

    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"],
        ["GROUP", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW"],
    ]


def test_exact_acl_is_deleted(filled, capsys):
    words = ["--allow-principal", ALICE, "--operation", "Read", "--topic", "orders", "--force"]

    assert acl(filled, "delete", "-o", "json", *words) == 0

    assert listed(capsys) == {("TOPIC", "orders", "LITERAL")}
    assert len(filled.acls) == 3
    assert acl(filled, "delete", *words) == 1
    assert "no ACL matches" in capsys.readouterr().err


def test_all_acls_of_a_resource_are_deleted_and_no_prefixed_ones(filled):
    filled.acls.add((TOPIC, "orders", PREFIXED, ALICE, "*", READ, ALLOW))

    assert acl(filled, "delete", "--topic", "orders", "--force") == 0

    assert (TOPIC, "orders", PREFIXED, ALICE, "*", READ, ALLOW) in filled.acls
    assert (TOPIC, "orders", LITERAL, ALICE, "*", READ, ALLOW) not in filled.acls
    assert (GROUP, "orders", LITERAL, ALICE, "*", READ, ALLOW) in filled.acls


def test_nothing_is_deleted_without_being_asked(filled, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))

    assert acl(filled, "delete", "--topic", "orders") == 2
    assert "add --force" in capsys.readouterr().err
    assert len(filled.acls) == 4


@pytest.mark.parametrize(("answer", "left"), [("n\n", 4), ("", 4), ("y\n", 3)])
def test_answer_decides_on_a_terminal(filled, capsys, monkeypatch, answer, left):
    stdin = io.StringIO(answer)
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)

    acl(filled, "delete", "--topic", "orders")

    assert "User:alice allow read on topic orders" in capsys.readouterr().err
    assert len(filled.acls) == left


def test_deletion_without_a_resource_is_wrong_usage(filled):
    assert acl(filled, "delete", "--force") == 2
    assert acl(filled, "delete", "--force", "--topic", "orders", "--operation", "Read") == 2
    assert len(filled.acls) == 4
