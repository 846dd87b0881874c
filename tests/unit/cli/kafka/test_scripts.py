"""Scripts that start and stop something, or run a tool by the name of its class."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from kbroker.cli.kafka import scripts, server_start, server_stop, table, zookeeper_start

pytestmark = pytest.mark.unit


@pytest.fixture
def executed(monkeypatch) -> list[list[str]]:
    """The commands that would have replaced this process."""
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, words: commands.append(words))
    return commands


def test_tool_runs_by_the_name_of_its_class(capsys):
    words = ["-daemon-less", "kafka.admin.TopicCommand"]
    assert table.main(words, "kafka-run-class") == 1
    assert (
        "Could not find or load main class -daemon-less; there are kafka."
        in capsys.readouterr().err
    )
    assert table.main(["kafka.tools.MirrorMakr"], "kafka-run-class") == 1
    assert capsys.readouterr().err.endswith("; did you mean kafka.tools.MirrorMaker?\n")
    for name in ("kafka.admin.TopicCommand", "org.apache.kafka.tools.TopicCommand"):
        assert table.main(["-name", "x", "-loggc", name, "--bogus"], "kafka-run-class") == 1
        assert "bogus is not a recognized option" in capsys.readouterr().err
    assert table.main(["-name"], "kafka-run-class") == 1
    assert "USAGE: kafka-run-class.sh" in capsys.readouterr().err


def test_server_starts_as_a_supervisor_with_its_words(executed):
    server_start.SCRIPT.run(["server.properties", "--override", "a=b"])

    (command,) = executed
    assert command[0] == sys.executable and "commands.supervisor()" in command[2]
    assert os.path.isdir(os.path.join(command[3], "kbroker"))
    assert command[4:] == ["server.properties", "--override", "a=b"]


def test_server_starts_behind_the_terminal(executed, monkeypatch):
    monkeypatch.setattr(server_start, "detach", lambda name: name != "kafkaServer")
    assert server_start.SCRIPT.main(["-daemon", "server.properties"]) == 0
    assert executed == []


def test_detached_process_writes_to_a_file_in_log_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "logs"))
    read, write = os.pipe()
    if scripts.detach("some"):
        try:
            os.write(1, b"from behind\n")
            os.write(write, b"%d" % os.getsid(0))
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        assert int(pipe.read()) != os.getsid(0)
    assert (tmp_path / "logs" / "some.out").read_text() == "from behind\n"


@pytest.fixture
def killed(monkeypatch) -> list[tuple[int, int]]:
    """Two brokers, and what is sent to them."""
    found = [
        (11, "kbroker: supervisor localhost:9092 /data/a"),
        (12, "kbroker: supervisor localhost:9093 /data/b"),
        (13, "kbroker: io-0"),
        (14, f"java -cp x {zookeeper_start.MAIN} zookeeper.properties"),
    ]
    sent: list[tuple[int, int]] = []
    for module in (server_stop, zookeeper_start):
        monkeypatch.setattr(module, "processes", lambda: iter(found))
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


def test_all_brokers_are_stopped_or_those_that_are_meant(killed, capsys, monkeypatch):
    assert table.main([], "kafka-server-stop") == 0
    assert killed == [(11, signal.SIGTERM), (12, signal.SIGTERM)]
    killed.clear()
    assert table.main(["/data/b"], "kafka-server-stop") == 0
    assert killed == [(12, signal.SIGTERM)]
    killed.clear()
    monkeypatch.setenv("SIGNAL", "KILL")
    assert table.main([":9092", "/data/a"], "kafka-server-stop") == 0
    assert killed == [(11, signal.SIGKILL)]
    killed.clear()
    assert table.main(["/data/c"], "kafka-server-stop") == 1
    assert capsys.readouterr().out == "No kafka server to stop\n"
    monkeypatch.setenv("SIGNAL", "NONE")
    assert table.main([], "kafka-server-stop") == 1
    assert killed == []


def test_zookeeper_is_stopped(killed, capsys):
    assert table.main(["zookeeper.properties"], "zookeeper-server-stop") == 0
    assert killed == [(14, signal.SIGTERM)]
    assert table.main(["other.properties"], "zookeeper-server-stop") == 1
    assert capsys.readouterr().out == "No zookeeper server to stop\n"


def test_processes_have_their_command_lines():
    lines = dict(server_stop.processes())

    assert "python" in lines[os.getpid()] or "pytest" in lines[os.getpid()]


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("zookeeper-server-start", ["/nowhere.properties"], "No such file"),
        ("zookeeper-server-start", ["-daemon"], "USAGE: zookeeper-server-start.sh"),
        ("kafka-server-start", ["-daemon"], "USAGE: kafka-server-start.sh"),
        ("zookeeper-shell", ["x:1", "-zk-tls-config-file"], "no filename provided"),
        ("zookeeper-shell", ["x:1", "-zk-tls-config-file", "/nowhere"], "No such file"),
        ("zookeeper-shell", ["-zk-tls-config-file", os.devnull], "USAGE: zookeeper-shell.sh"),
        ("zookeeper-shell", ["x:y", "ls", "/"], "'x:y' is not host:port"),
    ],
)
def test_wrong_words_for_a_script_are_refused(capsys, executed, name, words, said):
    assert table.main(words, name) == 1
    assert said in capsys.readouterr().err
    assert executed == []
