"""``kbroker status``, ``health``, ``doctor``, ``log`` and ``completion``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.running import sanitizer

from kbroker.cli import command
from kbroker.cli.verbs.completion import SCRIPTS
from kbroker.client.admin import topics as topic_admin
from kbroker.client.admin.cluster import (
    ClusterState,
    describe_cluster,
    probe,
    summarize_cluster,
)
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker, wait_until
from kbroker.testing.ports import HeldPort

pytestmark = pytest.mark.integration

PROGRAM = "import sys; from kbroker.commands import kbroker; sys.exit(kbroker())"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(broker_rack="r1") as started:
        with Cluster(started.bootstrap) as cluster:
            topic_admin.create_topics(
                cluster, [topic_admin.NewTopic("orders", 2), topic_admin.NewTopic("invoices", 1)]
            )
            commit(cluster, "billing", {("orders", 0): (0, "")})
        yield started


@pytest.fixture
def run(broker, capsys, monkeypatch):
    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", broker.bootstrap)

    def call(*words: str) -> tuple[int, str, str]:
        code = command.main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that nobody listens on."""
    held = HeldPort()
    yield held.address
    held.release()


# -- status


def test_status_shows_brokers_and_what_they_have(run, broker):
    code, out, err = run("status", "-o", "json")

    found = json.loads(out)
    assert (code, err) == (0, "")
    assert len(found["cluster_id"]) == 22
    assert (found["topics"], found["offline_partitions"]) == (3, 0)
    (only,) = found["brokers"]
    assert (only["address"], only["rack"], only["controller"]) == (broker.bootstrap, "r1", True)
    assert only["leads"] == only["replicas"] == found["partitions"]
    assert f"{broker.bootstrap}  r1" in run("status")[1]


# -- health


def test_broker_and_its_cluster_are_healthy(run, broker):
    code, out, err = run("health", "-o", "json")

    assert (code, err) == (0, "")
    rows = json.loads(out)
    directory = f"log directory {broker.data_dir}"
    assert [row["check"] for row in rows] == ["broker answers", "processes serve", directory]
    assert all(row["healthy"] for row in rows)
    assert "free" in rows[2]["detail"]
    code, out, err = run("health", "--cluster", "-o", "yaml")
    assert (code, out.count("healthy: true")) == (0, 4)
    assert run("health", "--cluster")[1].count("  yes") == 4


def test_stuck_process_makes_the_broker_ill_at_once(run, broker):
    os.kill(broker.pids["cleaner-0"], signal.SIGSTOP)
    try:
        wait_until(lambda: run("health")[0] == 1)
        code, out, err = run("health", "-o", "json")
        local = run("status", "--local", "--pid", str(broker.pid), "-o", "json")
        ill = run("doctor", "--watch", "0", "-o", "json")
    finally:
        os.kill(broker.pids["cleaner-0"], signal.SIGCONT)

    assert (code, err) == (1, "kbroker health: not healthy: processes serve\n")
    assert "cleaner-0: stuck" in out
    assert local[0] == 1
    assert "cleaner-0: stuck" in local[2]
    (found,) = json.loads(ill[1])["findings"]
    assert (found["kind"], found["subject"]) == ("process-stuck", "cleaner-0 of broker 0")
    wait_until(lambda: run("health")[0] == 0)


def test_missing_broker_is_not_healthy_and_waited_for(run):
    code, out, err = run("health", "--brokers", "2", "--wait", "--timeout", "0.5")

    assert (code, err) == (1, "kbroker health: not healthy: brokers\n")
    assert "1 of 2" in out


def test_partitions_in_trouble_are_named():
    row = topic_admin.PartitionState
    topic = topic_admin.TopicState(
        "t",
        bytes(16),
        False,
        [row(0, 1, [1, 2], [1, 2], []), row(1, 1, [1, 2], [1], [2]), row(2, None, [2], [], [2])],
    )
    state = ClusterState(None, 1, [], [topic])

    assert state.offline() == [("t", 2)]
    assert state.under_replicated() == [("t", 1), ("t", 2)]


# -- doctor


def test_nothing_is_listed_of_a_cluster_that_is_well(run):
    code, out, err = run("doctor")

    assert (code, out, err) == (0, "nothing is wrong\n", "")


def test_each_address_that_fails_has_its_reason_and_advice(run, broker, nobody):
    addresses = f"{nobody},name.invalid:9092,{broker.bootstrap}"

    code, out, err = run("doctor", "-b", addresses, "--watch", "0", "-o", "json")

    rows = {row["subject"]: row for row in json.loads(out)["findings"]}
    assert code == 1
    assert err == "kbroker doctor: 2 findings\n"
    assert rows.keys() == {f"bootstrap ({nobody})", "bootstrap (name.invalid:9092)"}
    assert "start the broker" in rows[f"bootstrap ({nobody})"]["cost"]
    assert "cannot resolve the name" in rows["bootstrap (name.invalid:9092)"]["what"]


def test_advertised_address_that_cannot_be_reached_is_found(run, nobody):
    """The most frequent trouble there is: the first connection works, and nothing after it."""
    with Broker(advertised_listeners=f"PLAINTEXT://{nobody}") as started:
        code, out, _ = run("doctor", "-b", started.bootstrap, "-o", "json", "--timeout", "5")

    document = json.loads(out)
    (row,) = document["findings"]
    assert code == 1
    assert row["subject"] == f"broker 0 ({nobody})"
    assert "advertised.listeners" in row["cost"]
    assert "groups" in document["unknown"][0]


def test_listener_that_says_nothing_ends_at_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        found = probe(Cluster(f"127.0.0.1:{port}"), "127.0.0.1", port, 0.3)

    assert found.error is not None and "API_VERSIONS" in found.error
    assert found.seconds < 10


# -- log


def test_log_is_kbroker_log(run, broker, tmp_path):
    code, out, _ = run("log", "verify", broker.config["log.dirs"])

    assert code == command.EXIT_OK
    assert "ok: " in out and "orders-0" not in out
    assert run("log", "verify", str(tmp_path / "absent"))[0] == command.EXIT_USAGE


# -- completion


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["to"], ["top", "topic"]),
        (["nothing", ""], []),
        (["topic", "d"], ["delete", "describe"]),
        (["topic", "describe", ""], ["invoices", "orders"]),
        (["topic", "describe", "orders", "in"], ["invoices"]),
        (["consume", "or"], ["orders"]),
        (["group", "describe", ""], ["billing"]),
        (["config", "get", ""], ["broker", "client-metrics", "group", "topic"]),
        (["config", "get", "topic", "o"], ["orders"]),
        (["config", "get", "group", ""], ["billing"]),
        (["acl", "add", "--topic", "--gr"], ["--group"]),
        (["acl", "add", "--producer", "--topic", "o"], ["orders"]),
        (["group", "reset", "billing", "--topic", ""], ["invoices", "orders"]),
        (["topic", "list", "-o", ""], ["json", "table", "yaml"]),
        (["topic", "create", "x", "--p"], ["--partitions", "--profile"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["log", ""], []),
    ],
)
def test_words_are_completed_with_live_names(run, words, found):
    code, out, err = run("__complete", *words)

    assert (code, err) == (0, "")
    assert out.split() == found


def test_brokers_that_cannot_be_asked_have_no_names(run, nobody):
    assert run("__complete", "topic", "describe", "-b", nobody, "") == (0, "", "")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_script_is_accepted_by_its_shell(run, shell, tmp_path):
    code, out, _ = run("completion", shell)
    assert code == 0 and "kbroker __complete" in out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(out)

    subprocess.run([shell, "-n", str(script)], check=True, timeout=60)


def test_bash_completes_topics(run, broker, tmp_path):
    """As a shell does it: the words so far, and the place of the cursor."""
    command_file = tmp_path / "kbroker"
    command_file.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{PROGRAM}" "$@"\n')
    command_file.chmod(0o755)
    script = run("completion", "bash")[1] + (
        'COMP_WORDS=(kbroker topic describe or) COMP_CWORD=3\n_kbroker\necho "${COMPREPLY[@]}"\n'
    )
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "KBROKER_BOOTSTRAP_SERVER": broker.bootstrap,
        "HOME": str(tmp_path),
        **sanitizer.ENVIRONMENT,
    }

    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, env=environment
    )

    assert done.stdout == "orders\n", done.stderr


def test_state_of_a_cluster_counts_replicas(broker):
    with Cluster(broker.bootstrap) as cluster:
        state = describe_cluster(cluster)
        summary = summarize_cluster(cluster)

    assert state.controller == 0
    assert {topic.name for topic in state.topics} >= {"orders", "invoices"}
    assert summary[:3] == state[:3]
    assert summary.topics == len(state.topics)
    assert summary.internal_topics == sum(topic.internal for topic in state.topics)
    assert summary.partitions == sum(len(topic.partitions) for topic in state.topics)
