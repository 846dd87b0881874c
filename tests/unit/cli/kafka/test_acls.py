"""``kafka-acls``: which ACLs are meant."""

from __future__ import annotations

import pytest

from kbroker.cli.kafka.acls import OPTIONS, PrintedEntry, PrintedResource, acls_by_resource
from kbroker.cli.kafka.options import Given, WrongUse

pytestmark = pytest.mark.unit

TOPIC, CLUSTER = (
    PrintedResource("TOPIC", "t", "LITERAL"),
    PrintedResource("CLUSTER", "kafka-cluster", "LITERAL"),
)


def meant(*words: str) -> dict[PrintedResource, set[PrintedEntry]]:
    return acls_by_resource(Given(OPTIONS, words))


def test_operations_hosts_and_principals_are_combined():
    words = ("--topic", "t", "--operation", "Read", "--operation", "DESCRIBE_CONFIGS")
    allowed = ("--allow-principal", "User:a", "--allow-host", "h1", "--allow-host", "h2")

    found = meant(*words, *allowed, "--deny-principal", "User:b")

    assert found == {
        TOPIC: {
            PrintedEntry("User:a", host, operation, "ALLOW")
            for host in ("h1", "h2")
            for operation in ("READ", "DESCRIBE_CONFIGS")
        }
        | {
            PrintedEntry("User:b", "*", operation, "DENY")
            for operation in ("READ", "DESCRIBE_CONFIGS")
        }
    }


def test_roles_have_what_they_need():
    words = ("--topic", "t", "--group", "g", "--allow-principal", "User:a", "--idempotent")

    found = meant("--producer", "--consumer", *words)

    operations = {key: {entry.operation for entry in rows} for key, rows in found.items()}
    assert operations == {
        TOPIC: {"WRITE", "DESCRIBE", "CREATE", "READ"},
        PrintedResource("GROUP", "g", "LITERAL"): {"READ"},
        CLUSTER: {"IDEMPOTENT_WRITE"},
    }


def test_without_principals_all_are_meant():
    assert meant("--cluster", "--operation", "Alter") == {CLUSTER: set()}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--operation", "Read"], "You must provide at least one resource"),
        (
            ["--topic", "t", "--operation", "ClusterAction", "--allow-principal", "User:a"],
            "ResourceType TOPIC only supports operations",
        ),
    ],
)
def test_what_cannot_be_is_wrong_use(words, why):
    with pytest.raises(WrongUse, match=why):
        meant(*words)


def test_texts_are_java_s():
    assert str(TOPIC) == "ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)"
    assert str(PrintedEntry("User:a", "*", "READ", "ALLOW")) == (
        "(principal=User:a, host=*, operation=READ, permissionType=ALLOW)"
    )
