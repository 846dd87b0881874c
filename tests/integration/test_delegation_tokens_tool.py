"""``kafka-delegation-tokens``, on a broker whose users log in by PLAIN."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.cli.kafka import table
from kbroker.client.admin.topics import list_topics
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="a";'
Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
        "delegation.token.master.key": "key",
    }
    with Broker(settings) as started:
        yield started


@pytest.fixture
def login(tmp_path: Path) -> str:
    path = tmp_path / "alice.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="a";\n'
    )
    return str(path)


@pytest.fixture
def tool(broker: Broker, login: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs it -> (exit code, lines of stdout, stderr)."""

    def run(*words: str) -> tuple[int, list[str], str]:
        where = ("--bootstrap-server", broker.bootstrap, "--command-config", login)
        code = table.main([*where, *words], "kafka-delegation-tokens")
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return run


def test_token_is_created_used_renewed_described_and_expired(tool: Run, broker: Broker) -> None:
    create = ("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    code, lines, errors = tool(*create)

    assert code == 0, errors
    assert lines[0] == (
        "Calling create token operation with renewers :[User:bob] , max-life-time-period :-1"
    )
    number, hmac, owner, requester, renewers, *dates = lines[-1].split()
    assert lines[1] == f"Created delegation token with tokenId : {number}"
    assert (owner, requester, renewers, len(dates)) == ("User:alice", "User:alice", "[User:bob]", 3)
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{number}" password="{hmac}" tokenauth="true";',
    }
    with Cluster.from_options(settings) as cluster:
        list_topics(cluster)

    code, lines, _ = tool("--renew", "--renew-time-period", "3600000", "--hmac", hmac)
    assert lines[1].startswith("Completed renew operation. New expiry date : 20")
    code, lines, _ = tool("--describe", "--owner-principal", "User:alice")
    assert lines[0] == "Calling describe token operation for owners: [User:alice]"
    assert lines[1] == "Total number of tokens : 1"
    assert lines[-1].split()[:5] == [number, hmac, owner, requester, renewers]
    assert tool("--describe", "--owner-principal", "User:eve")[1][1].endswith(" : 0")
    code, lines, _ = tool("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert lines[1].startswith("Completed expire operation. New expiry date : 20")
    assert tool("--describe")[1][1] == "Total number of tokens : 0"


def test_wrong_use_of_delegation_tokens_is_refused(tool: Run) -> None:
    for words, said in (
        (("--create", "--describe"), "exactly one action"),
        (("--create",), 'Missing required argument "[max-life-time-period]"'),
        (("--describe", "--hmac", "x"), 'Option "[describe]" can\'t be used with option "[hmac]"'),
        (("--describe", "--owner-principal", "alice"), "principalType:principalName"),
        (("--renew", "--renew-time-period", "1", "--hmac", "!"), "--hmac is not base64"),
    ):
        code, _, errors = tool(*words)
        assert (code, said in errors) == (1, True), errors
    unknown = base64.b64encode(b"x").decode()
    code, _, errors = tool("--renew", "--renew-time-period", "1", "--hmac", unknown)
    assert (code, "DELEGATION_TOKEN_NOT_FOUND" in errors) == (1, True)
