"""Delegation tokens as Apache Kafka has them: its tools and clients, and a cluster of both.

Of the clients that people have, only Java's logs in with a token (``tokenauth``): librdkafka,
kafka-python and aiokafka have no such extension.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.mixed import MixedCluster, waited
from kafka import KafkaAdminClient
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing, libraries
from support.drivers.kafka_tools import run_tool
from support.security import token_requests as tokens
from support.security.secured import SecuredClient, address_of

from kbroker.metastore import token_nodes
from kbroker.testing import Broker
from perf.brokers import free_ports
from perf.kafka_distribution import kafka_libraries

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required {};"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required {};"
OWN = "listener.name.sasl_plaintext."
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    f"{OWN}plain.sasl.jaas.config": PLAIN.format('user_alice="a" user_bob="b"'),
    "delegation.token.master.key": "the key of both",
}
# Kafka makes a login of its own for each mechanism.
KAFKAS = {f"{OWN}{name}.sasl.jaas.config": JAAS.format('username="x" password="x"')
          for name in ("scram-sha-256", "scram-sha-512")}  # fmt: skip
TOPICS = {"2.7.2": "kafka.admin.TopicCommand", "3.9.1": "org.apache.kafka.tools.TopicCommand"}
TOKENS = {
    "2.7.2": "kafka.admin.DelegationTokenCommand",
    "3.9.1": "org.apache.kafka.tools.DelegationTokenCommand",
}


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    listeners = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
    with Broker(SETTINGS | listeners) as started:
        yield started


def jars_of(version: str) -> Path:
    return kafka_libraries(version="2.7.2") if version == "2.7.2" else libraries(
        version, "kafka-tools"
    )  # fmt: skip


def client_file(place: Path, name: str, mechanism: str, login: str) -> Path:
    file = place / f"{name}.properties"
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={login}\n"
    )
    return file


class Tool:
    """kafka-delegation-tokens.sh of a release, as alice."""

    def __init__(self, version: str, bootstrap: str, place: Path) -> None:
        login = PLAIN.format('username="alice" password="a"')
        self._file = client_file(place, "alice", "PLAIN", login)
        self._version, self._bootstrap = version, bootstrap

    def __call__(self, *arguments: str) -> str:
        where = ("--bootstrap-server", self._bootstrap, "--command-config", str(self._file))
        return run_tool(jars_of(self._version), TOKENS[self._version], *where, *arguments)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("version", ["2.7.2", "3.9.1"])
def test_tool_makes_a_token_that_javas_client_logs_in_with(
    broker: Broker, tmp_path: Path, version: str, mechanism: str
) -> None:
    tool = Tool(version, broker.bootstrap, tmp_path)
    tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    text = tool("--describe", "--owner-principal", "User:alice")
    found = re.search(r"([\w-]{22})\s+(\S{88})\s+User:alice", text)
    assert found is not None, text
    token_id, secret = found.groups()
    assert "User:bob" in text

    login = JAAS.format(f'username="{token_id}" password="{secret}" tokenauth="true"')
    of_token = client_file(tmp_path, "token", mechanism, login)
    listed = run_tool(
        jars_of(version), TOPICS[version], "--bootstrap-server", broker.bootstrap,
        "--command-config", str(of_token), "--list",
    )  # fmt: skip
    renewed = tool("--renew", "--renew-time-period", "60000", "--hmac", secret)
    ended = tool("--expire", "--expiry-time-period", "-1", "--hmac", secret)
    rest = tool("--describe", "--owner-principal", "User:alice")

    assert isinstance(listed, str)
    assert "renewed" in renewed or "Completed" in renewed
    assert "expired" in ended or "Completed" in ended
    assert token_id not in rest


def test_tool_makes_a_token_for_another_owner(broker: Broker, tmp_path: Path) -> None:
    """KIP-373; without an authorizer, everybody may."""
    tool = Tool("3.9.1", broker.bootstrap, tmp_path)
    tool("--create", "--max-life-time-period", "-1", "--owner-principal", "User:carol")
    text = tool("--describe", "--owner-principal", "User:carol")

    (token,) = re.findall(r"^[\w-]{22}\s.*User:carol.*$", text, re.MULTILINE)
    assert "User:alice" in token, "who has requested it"
    seen = tool("--describe", "--owner-principal", "User:alice")
    assert "User:carol" in seen, "a requester is described as an owner is"


# -- one cluster of both


class Both:
    """A Kafka 2.7.2 and a kbroker with the same users and the same key."""

    def __init__(self, cluster: MixedCluster) -> None:
        self.cluster = cluster
        plain, port = free_ports(2)
        cluster.kafka(
            1,
            port=plain,
            **SETTINGS | KAFKAS,
            listeners=f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{port}",
        )
        ours = cluster.kbroker(
            2, **SETTINGS, listeners="PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
        )
        self.addresses = {"kafka": ("127.0.0.1", port),
                          "kbroker": address_of(ours, "SASL_PLAINTEXT")}  # fmt: skip

    def client(self, name: str, user: str = "alice") -> SecuredClient:
        return SecuredClient(self.addresses[name], user=user, password=user[0])


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with MixedCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield Both(cluster)


@pytest.mark.parametrize(("maker", "other"), [("kafka", "kbroker"), ("kbroker", "kafka")])
def test_token_of_one_is_a_token_of_the_other(both: Both, maker: str, other: str) -> None:
    with both.client(maker) as client, both.client(other, "bob") as bob:
        cls = tokens.CreateDelegationTokenRequest
        named = cls.CreatableRenewers(principal_type="User", principal_name="bob")
        token = client.call(cls(renewers=[named], max_lifetime_ms=-1), 2)
        assert token.error_code == 0
        path = token_nodes.path_of(token.token_id)
        node = both.cluster.document(path)

        def accepted(name: str) -> bool:
            secret = tokens.secret_of(token)
            return tokens.refused(both.addresses[name], token.token_id, secret) is None

        waited(lambda: accepted(other), "the other broker accepts the token")
        assert accepted(maker)
        renewed = tokens.renew(bob, token, 90_000)
        assert renewed.error_code == 0
        waited(lambda: both.cluster.document(path)["expiryTimestamp"]
               == renewed.expiry_timestamp_ms, "it is stored")  # fmt: skip
        again = both.cluster.document(path)
        assert tokens.expire(bob, token).error_code == 0
        waited(lambda: not accepted(maker), "the maker rejects it")

    assert set(node) == set(again) == {
        "version", "owner", "renewers", "issueTimestamp", "maxTimestamp", "expiryTimestamp",
        "tokenId",
    }  # fmt: skip
    assert node["renewers"] == again["renewers"] == ["User%3Abob"]
    assert (node["version"], node["owner"]) == (1, "User%3Aalice")
    for key in ("issueTimestamp", "maxTimestamp", "expiryTimestamp"):
        assert isinstance(node[key], int), json.dumps(node)


def test_cluster_of_both_still_answers(both: Both) -> None:
    """Neither has ended because of a token of the other."""
    both.cluster.check()
    for member in both.cluster.members.values():
        admin = KafkaAdminClient(bootstrap_servers=member.bootstrap.split(",")[0])
        assert len(admin.describe_cluster()["brokers"]) == 2
        admin.close()
