"""``kafka-configs --zookeeper``, and ``kafka-acls`` with AclAuthorizer's properties, beside Kafka
2.7's: the same words, the same text, and nodes that the other one reads.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.zookeeper import ZooKeeperServer
from support.drivers.java import FIRST_TEST_TIMEOUT_S, JVM_OPTIONS, java_missing

from kbroker.client.zookeeper.znodes import Znodes
from perf.kafka_distribution import kafka_libraries

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

BIN = Path(__file__).resolve().parents[2] / "bin"
USER = ("--entity-type", "users", "--entity-name", "al ice")
CLIENTS = ("--entity-type", "clients")
# Each on what the ones before it have left.
COMMANDS = [
    ("--alter", "--add-config", "SCRAM-SHA-512=[iterations=5000,password=pw]", *USER),
    ("--alter", "--add-config", "producer_byte_rate=5", *USER),
    ("--describe", *USER),
    ("--describe", "--entity-type", "users"),
    ("--alter", "--delete-config", "SCRAM-SHA-512", *USER),
    ("--alter", "--delete-config", "SCRAM-SHA-512", *USER),
    ("--alter", "--add-config", "consumer_byte_rate=7", *CLIENTS, "--entity-default"),
    ("--alter", "--add-config", "consumer_byte_rate=7", *USER, *CLIENTS, "--entity-name", "c"),
    ("--describe", "--entity-type", "users", *CLIENTS),
    ("--alter", "--add-config", "foo=1", *USER),
    ("--alter", "--add-config", "log.cleaner.threads=2", "--entity-type", "brokers",
     "--entity-default"),
    ("--describe", "--entity-type", "brokers"),
    ("--alter", "--delete-config", "retention.ms", "--entity-type", "topics", "--entity-name", "t"),
    ("--describe", "--entity-type", "topics", "--entity-name", "t"),
]  # fmt: skip


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path) as server:
        with Znodes(server.connect) as nodes:
            for chroot in ("/ours", "/kafkas"):
                nodes.create(chroot, b"", ephemeral=False, sequence=False)
        yield server


def kafkas(main: str, *words: str) -> tuple[int, str]:
    jars = kafka_libraries(version="2.7.2")
    command = ["java", *JVM_OPTIONS, "-Xlog:disable", "-cp", f"{jars}/*", main, *words]
    return ran(command)


def ran(command: list[str]) -> tuple[int, str]:
    """Exit code, and stdout without what is made up for each password."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    masked = re.sub(r"(salt|stored_key|server_key)=[^,]*", r"\1=...", done.stdout)
    return done.returncode, masked


def test_settings_are_written_and_described_alike(zookeeper: ZooKeeperServer) -> None:
    for words in COMMANDS:
        own = ran(
            [str(BIN / "kafka-configs.sh"), "--zookeeper", f"{zookeeper.connect}/ours", *words]
        )
        theirs = kafkas(
            "kafka.admin.ConfigCommand", "--zookeeper", f"{zookeeper.connect}/kafkas", *words
        )
        assert own == theirs, words
    # Each reads what the other one has written.
    with Znodes(zookeeper.connect) as nodes:
        for path in ("users/al%20ice", "users/al%20ice/clients/c", "clients/<default>"):
            found = [nodes.get(f"/{side}/config/{path}")[0] for side in ("ours", "kafkas")]
            assert found[0] == found[1]
        notices = [nodes.children(f"/{side}/config/changes")[0] for side in ("ours", "kafkas")]
        assert notices[0] == notices[1]
        first = [nodes.get(f"/{side}/config/changes/{notices[0][0]}")[0]
                 for side in ("ours", "kafkas")]  # fmt: skip
        assert first[0] == first[1]


def test_acls_of_each_are_read_by_the_other(zookeeper: ZooKeeperServer) -> None:
    where = ("--authorizer-properties", f"zookeeper.connect={zookeeper.connect}/ours")
    own = [str(BIN / "kafka-acls.sh"), *where]
    add = ("--add", "--allow-principal", "User:a", "--operation", "Read", "--topic")
    prefixed = ("--resource-pattern-type", "prefixed")
    assert ran([*own, *add, "mine"])[0] == 0
    assert kafkas("kafka.admin.AclCommand", *where, *add, "theirs", *prefixed)[0] == 0

    lists = [ran([*own, "--list"])[1], kafkas("kafka.admin.AclCommand", *where, "--list")[1]]

    for text in lists:
        assert "resourceType=TOPIC, name=mine, patternType=LITERAL" in text
        assert "resourceType=TOPIC, name=theirs, patternType=PREFIXED" in text
        assert text.count("(principal=User:a, host=*, operation=READ, permissionType=ALLOW)") == 2
    assert ran([*own, "--remove", "--force", "--topic", "theirs", *prefixed])[0] == 0
    assert "theirs" not in kafkas("kafka.admin.AclCommand", *where, "--list")[1]
