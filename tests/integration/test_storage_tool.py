"""``kafka-storage``: the start of the documents of Kafka from 3.3 on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.cli.kafka import table
from kbroker.client.connections.cluster import Cluster
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.testing import Broker
from kbroker.uuids import parse_uuid

pytestmark = pytest.mark.integration

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        code = table.main(list(words), "kafka-storage")
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "server.properties"
    path.write_text(f"broker.id=7\nlog.dirs={tmp_path}/a,{tmp_path}/b\n")
    return str(path)


def test_broker_begins_in_formatted_directories(tool: Run, file: str, tmp_path: Path) -> None:
    code, out, _ = tool("random-uuid")
    assert code == 0
    cluster_id = out.strip()
    assert len(parse_uuid(cluster_id)) == 16
    first, second = f"{tmp_path}/a", f"{tmp_path}/b"
    missing = f"Found problems:\n  {first} does not exist\n  {second} does not exist\n\n"
    assert tool("info", "-c", file) == (1, missing, "")

    code, out, errors = tool("format", "--standalone", "-t", cluster_id, "-c", file)

    assert (code, errors) == (0, "")
    assert out.splitlines() == [
        f"Formatting metadata directory {first} with metadata.version 4.3-IV0.",
        f"Formatting data directory {second} with metadata.version 4.3-IV0.",
    ]
    found = f"Found log directories:\n  {first}\n  {second}\n\nFound metadata: {{broker.id=7, "
    assert tool("info", "-c", file) == (0, f"{found}cluster.id={cluster_id}, version=0}}\n\n", "")
    again = ("format", "-t", cluster_id, "-c", file)
    said = f"Log directory {first} is already formatted. Use --ignore-formatted to ignore this "
    assert tool(*again) == (1, "", f"{said}directory and format the others.\n")
    done = "All of the log directories are already formatted.\n"
    assert tool(*again, "-g") == (0, done, "")
    settings = {"log.dirs": f"{first},{second}", "broker.id": "7"}
    with Broker(settings) as broker, Cluster(broker.bootstrap) as cluster:
        response = cluster.call(None, MetadataRequest(topics=[]), what="the cluster id")
    assert response.cluster_id == cluster_id


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-t", "x"), "Cluster ID string x does not appear to be a valid UUID"),
        (("-t", "7lUyEs92QjyAmWLXbWp3pA", "-r", "3.9-IV0"), "a single broker has 4.3-IV0"),
        (("-t", "7lUyEs92QjyAmWLXbWp3pA", "-S", "SCRAM-SHA-256=[name=a]"), "use kafka-configs"),
        (("-t", "7lUyEs92QjyAmWLXbWp3pA", "-N"), "a broker is its own controller"),
    ],
)
def test_what_cannot_be_formatted_is_refused(
    tool: Run, file: str, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    code, out, errors = tool("format", "-c", file, *words)

    assert (code, out) == (1, "")
    assert said in errors
    assert not (tmp_path / "a").exists()


def test_directory_of_another_cluster_is_named(tool: Run, file: str) -> None:
    one, other = "7lUyEs92QjyAmWLXbWp3pA", "vLn_jaklSy2t65fRTUYy5A"
    assert tool("format", "-t", one, "-c", file)[0] == 0

    code, _, errors = tool("format", "-g", "-t", other, "-c", file)

    assert code == 1
    assert f"Expected {other}, but read {one}" in errors
