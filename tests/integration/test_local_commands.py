"""``kbroker top``, ``status --local`` and ``bundle``: a broker seen through its shared memory."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.all_processes import wait_until_all_serve

from kbroker.cli import command
from kbroker.cli.local import runs
from kbroker.cli.local.attached import AttachedBroker
from kbroker.cli.local.board import board, look
from kbroker.cli.local.runs import of_process, running
from kbroker.client import KafkaProducer
from kbroker.client.admin import topics as topic_admin
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster
from kbroker.protocol.api import ApiKey
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

PROGRAM = "import sys; from kbroker.commands import kbroker; sys.exit(kbroker())"
SECRETS = ("hunter2-of-alice", "hunter2-of-bob", "hunter2-of-encoder")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        with Cluster(started.bootstrap, client_id="loader") as cluster:
            topic_admin.create_topics(
                cluster, [topic_admin.NewTopic("orders", 2), topic_admin.NewTopic("quiet", 1)]
            )
            commit(cluster, "billing", {("orders", 0): (0, "")})
        yield started


def produce(broker: Broker, count: int) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "client.id": "loader"}
    with KafkaProducer(settings) as producer:
        for _ in range(count):
            producer.send("orders", value=b"x" * 1000, partition=0).result(30)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = command.main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def attached(broker: Broker) -> AttachedBroker:
    return AttachedBroker(of_process(broker.pid))


def local(broker: Broker, capsys: pytest.CaptureFixture[str]) -> dict[str, list[dict[str, object]]]:
    code, out, err = run(capsys, "status", "--local", "--pid", str(broker.pid), "-o", "json")
    assert code == 0, err
    found: dict[str, list[dict[str, object]]] = json.loads(out)
    return found


def test_board_has_processes_topics_clients_and_groups(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = attached(broker)
    before = look(seen)
    produce(broker, 20)
    # Processes tell of requests a few times a second.
    wait_until(lambda: look(seen).requests[ApiKey.PRODUCE] > 0)
    wait_until_all_serve(broker)

    found = board(seen, before, look(seen))

    rows = {row["process"]: row for row in found["processes"]}
    assert {name: row["pid"] for name, row in rows.items()} == {
        **broker.pids,
        "supervisor": broker.pid,
    }
    assert {row["state"] for row in rows.values()} == {"ready"}
    assert all(row["memory_bytes"] > 1 << 20 for row in rows.values())
    first = found["topics"][0]
    assert (first["topic"], first["partitions"], first["leads"]) == ("orders", 2, 2)
    assert first["bytes_in_per_s"] > first["messages_in_per_s"] > 0
    assert {row["topic"]: row["bytes"] > 0 for row in found["topics"]}["quiet"] is False
    clients = [row for row in found["clients"] if row["client_id"] == "loader"]
    named = max(clients, key=lambda row: row["software"])  # ApiVersions comes before the name
    assert named["software"].startswith("kbroker")
    assert named["requests_per_s"] > 0
    assert named["listener"] == "PLAINTEXT"
    assert {row["api"] for row in found["requests"]} >= {"Produce", "ApiVersions"}
    wait_until(lambda: [row["group"] for row in local(broker, capsys)["groups"]] == ["billing"])
    [group] = local(broker, capsys)["groups"]
    assert group["lag"] == 20
    assert group["lag_seconds"] is not None


def test_attaching_changes_nothing_in_the_broker(broker: Broker) -> None:
    """Whatever is opened is opened for reading, and nothing is mapped."""
    before = set(os.listdir("/proc/self/fd"))
    seen = attached(broker)
    opened = set(os.listdir("/proc/self/fd")) - before

    assert len(opened) >= 7
    for fd in map(int, opened):
        if os.path.exists(f"/proc/self/fd/{fd}"):
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    with open("/proc/self/maps") as file:
        assert "kbroker-" not in file.read()
    assert seen.is_running


def test_top_prints_a_document_for_each_round(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("top", "--pid", str(broker.pid), "-n", "2", "-d", "0.1", "-o", "yaml")

    code, out, _ = run(capsys, *words)

    assert code == 0
    before, *documents = out.split("---\n")
    assert (before, len(documents)) == ("", 2)
    assert all("\nprocesses:\n  - " in document for document in documents)


def test_top_works_while_the_broker_is_stopped(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = [broker.pid, *broker.pids.values()]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        code, out, _ = run(capsys, "top", "--pid", str(broker.pid), "-n", "1", "-d", "0.1")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)

    assert code == 0
    assert "io-0" in out
    assert "orders" in out
    assert "the exporter does not answer" in out


def test_stuck_process_is_called_that(broker: Broker) -> None:
    pid = broker.pids["io-0"]
    os.kill(pid, signal.SIGSTOP)
    try:
        seen = attached(broker)

        def state() -> str:
            now = look(seen)
            rows = {row["process"]: row for row in board(seen, now, now)["processes"]}
            return str(rows["io-0"]["state"])

        wait_until(lambda: state() == "stuck")
    finally:
        os.kill(pid, signal.SIGCONT)


def test_top_in_a_terminal_redraws_until_q(broker: Broker) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "top", "--pid", str(broker.pid), "-d", "0.2"],
        stdin=slave, stdout=slave, stderr=slave, close_fds=True,
    )  # fmt: skip
    os.close(slave)
    seen = b""

    def drawn() -> bool:
        nonlocal seen
        seen += os.read(master, 65536)
        return seen.count(b"\x1b[H") >= 3

    wait_until(drawn)
    os.write(master, b"q")
    wait_until(lambda: drawn() and seen.endswith(b"\x1b[?1049l"))

    assert process.wait(30) == 0
    assert b"PROCESS" in seen
    os.close(master)


def test_stop_ends_a_broker_and_waits_for_its_end(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    with Broker() as other:
        stop = ("stop", "--pid", str(other.pid))
        assert run(capsys, *stop) == (0, f"the broker {other.pid} has ended\n", "")
        wait_until(lambda: not other.running)  # its template has seen it
        code, _, said = run(capsys, *stop)
    assert (code, said) == (1, f"kbroker stop: process {other.pid}: No such process\n")
    code, _, said = run(capsys, "stop", "--pid", str(os.getpid()))
    assert (code, "is no supervisor of a kbroker" in said) == (1, True)
    assert broker.pid in [run.pid for run in running()]


def test_stop_says_when_a_broker_does_not_end(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker() as other:
        os.kill(other.pid, signal.SIGSTOP)
        try:
            code, _, said = run(capsys, "stop", "--pid", str(other.pid), "--wait", "0")
        finally:
            os.kill(other.pid, signal.SIGCONT)
    assert (code, f"the broker {other.pid} has not ended within 0 s" in said) == (1, True)


def test_wrong_pid_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "top", "--pid", str(os.getpid()))

    assert code == 1
    said = f"process {os.getpid()} is no supervisor of a kbroker that this user may look at"
    assert err == f"kbroker top: {said}\n"


def test_one_of_several_brokers_is_chosen_by_pid_or_address(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two numbers of processes say nothing to whoever started two brokers."""
    assert broker.pid in [run.pid for run in running()]
    with Broker() as other:
        assert {broker.pid, other.pid} <= {run.pid for run in running()}
        verbs = (["top", "-n", "1"], ["bundle"], ["status", "--local"], ["stop"])
        for words in verbs:
            code, _, err = run(capsys, *words)
            assert code == 2, words
            assert "choose one with --pid or --address" in err
            assert len(err.splitlines()) == 1
            for each in (broker, other):
                [directory] = broker_status(each)["log_dirs"]
                assert f"{each.pid} {each.bootstrap} {directory}" in err
        port = other.bootstrap.rpartition(":")[2]
        for address in (other.bootstrap, f"localhost:{port}", port):
            code, out, err = run(capsys, "status", "--address", address, "-o", "json")
            assert (code, json.loads(out)["broker"]["pid"]) == (0, other.pid), err
        code, _, err = run(capsys, "stop", "--address", f"elsewhere.example:{port}")
        assert code == 1
        assert f"no broker here has the address elsewhere.example:{port}: " in err
        assert run(capsys, "stop", "--address", "nowhere")[0] == 2
        assert run(capsys, "stop", "--address", other.bootstrap)[0] == 0
        wait_until(lambda: not other.running)  # its template has seen it
    assert broker.running


def test_child_that_still_has_the_title_of_its_supervisor_is_none() -> None:
    """It has the same regions, and would be shown and stopped in the supervisor's place."""
    program = (
        "import os, sys, setproctitle; setproctitle.setproctitle('kbroker: supervisor x');"
        "child = os.fork(); child and print(child, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as supervisor:
        assert supervisor.stdin is not None and supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        found = runs._supervisors()
        supervisor.stdin.close()

    assert supervisor.pid in found
    assert child not in found


def test_bundle_has_everything_and_no_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listener = "listener.name.sasl_plaintext"
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        f"{listener}.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="alice" password="hunter2-of-alice" user_alice="hunter2-of-alice";'
        ),
        "password.encoder.secret": "hunter2-of-encoder",
    }
    with Broker(settings) as broker:
        plain = next(
            address for name, address in broker_status(broker)["listeners"].items()
            if name == "PLAINTEXT"
        )  # fmt: skip
        password = tmp_path / "password"
        password.write_text("hunter2-of-bob\n")
        words = ("-b", plain, "bob", "--password-file", str(password))
        assert run(capsys, "user", "add", *words)[0] == 0
        path = tmp_path / "report.tar.gz"
        code, out, err = run(capsys, "bundle", str(path), "--pid", str(broker.pid))
        again = run(capsys, "bundle", str(path), "--pid", str(broker.pid))

    assert (code, out) == (0, f"{path}\n"), err
    assert path.stat().st_mode & 0o777 == 0o600
    assert again[0] == 1  # it overwrites nothing
    members = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            members[member.name.partition("/")[2]] = file.read().decode()
    assert err == ""
    assert {"versions.json", "board.json", "processes.txt", "log.txt", "nodes.txt", "README",
            "directories.txt", "exporter-metrics.txt"} <= members.keys()  # fmt: skip
    for name, text in members.items():
        for secret in SECRETS:
            assert secret not in text, name
    settings_shown = json.loads(members["broker.json"])["settings"]
    assert settings_shown[f"{listener}.plain.sasl.jaas.config"] == "(hidden)"
    assert settings_shown["sasl.enabled.mechanisms"] == "PLAIN,SCRAM-SHA-256"
    assert "/config/users/bob" in members["nodes.txt"]
    assert "/brokers/ids/0" in members["nodes.txt"]
    assert "serving clients" in members["log.txt"]
    assert "kafka_server_brokertopicmetrics" in members["exporter-metrics.txt"]
    assert "kbroker" in json.loads(members["versions.json"])


def broker_status(broker: Broker) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = attached(broker).status
    return found
