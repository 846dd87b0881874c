"""A standalone master of Spark, with workers that it takes for machines of their own."""

from __future__ import annotations

import functools
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.testing import wait_until
from perf.brokers import free_ports

# Each of them is a JVM that starts, on a machine that may be busy with others.
_START_S = 400
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_home() -> Path:
    """The folder of PySpark; skips the test if there is none."""
    pyspark = pytest.importorskip("pyspark")
    return Path(pyspark.__file__).parent


@contextmanager
def cluster(place: Path, hosts: Sequence[str], **variables: str) -> Iterator[str]:
    """The URL of a master that a worker of each address has registered with. variables: of the
    workers' environment, without PYTHONPATH if it is not among them.

    Workers at different addresses (127.0.0.1, 127.0.0.2) are different hosts to Spark, which starts
    a second attempt at a task only on another host.
    """
    launcher = str(spark_home() / "bin/spark-class")
    (port,) = free_ports(1)
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = base | {"SPARK_NO_DAEMONIZE": "1", "JDK_JAVA_OPTIONS": _QUICK_JVM} | variables
    log = place / "master.log"
    started: list[subprocess.Popen[bytes]] = []

    def start(host: str, *arguments: str) -> None:
        with log.open("ab") as output:
            name, *rest = arguments
            command = [launcher, name, "-h", host, "--webui-port", "0", *rest]
            of_host = environment | {"SPARK_LOCAL_IP": host}
            started.append(
                subprocess.Popen(command, env=of_host, stdout=output, stderr=output, cwd=place)
            )

    deploy = "org.apache.spark.deploy"
    try:
        start("127.0.0.1", f"{deploy}.master.Master", "-p", str(port))
        wait_until(functools.partial(_listens, port), timeout=_START_S)
        url = f"spark://127.0.0.1:{port}"
        for number, host in enumerate(hosts):
            work = ["-d", str(place / f"work-{number}"), "-c", "1", "-m", "700M"]
            start(host, f"{deploy}.worker.Worker", *work, url)
        wait_until(
            lambda: len(re.findall("Registering worker", log.read_text())) >= len(hosts),
            timeout=_START_S,
        )
        yield url
    finally:
        for one in reversed(started):
            one.terminate()
        for one in started:
            one.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
