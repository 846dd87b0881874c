"""What the container's files promise: no root, a health check, time to stop in order; and that its
program starts what it is told to.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from kbroker.config.loader import BrokerConfig

pytestmark = pytest.mark.unit

CONFIG = Path(__file__).resolve().parents[2] / "config"
CONTAINERFILE = (CONFIG / "Containerfile").read_text(encoding="utf-8")
STAND_IN = '#!/bin/sh\necho "${0##*/} $* zookeeper=$KAFKA_ZOOKEEPER_CONNECT"\n'


def instructions() -> dict[str, str]:
    lines = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", CONTAINERFILE, flags=re.MULTILINE))
    pairs = [line.split(maxsplit=1) for line in lines.splitlines() if line.strip()]
    return dict(pairs)


def test_containerfile_takes_a_base_runs_as_a_user_and_checks_health() -> None:
    found = instructions()

    assert found["FROM"] == "${BASE}"
    assert "ARG BASE=docker.io/library/python:" in CONTAINERFILE
    assert found["USER"] == "1000:1000"
    assert "useradd --uid 1000" in found["RUN"]
    assert '["kbroker", "health"]' in found["HEALTHCHECK"]
    assert found["VOLUME"] in (CONFIG / "container-run").read_text(encoding="utf-8")


def test_those_who_stop_a_broker_wait_longer_than_it_may_take() -> None:
    allowed_s = BrokerConfig({})["shutdown.timeout.ms"] / 1000

    compose = (CONFIG / "compose.yaml").read_text(encoding="utf-8")
    unit = (CONFIG / "kbroker.service").read_text(encoding="utf-8")

    for pattern, text in ((r"stop_grace_period: (\d+)s", compose), (r"TimeoutStopSec=(\d+)", unit)):
        found = re.search(pattern, text)
        assert found
        assert int(found[1]) > allowed_s


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "kbroker start --environment --data /var/lib/kbroker zookeeper=zk:1"),
        (
            ["--override", "a=b"],
            "kbroker start --environment --data /var/lib/kbroker --override a=b zookeeper=zk:1",
        ),
        (["sh", "-c", "echo other"], "other"),
    ],
)
def test_program_of_the_image_starts_a_broker_or_what_it_is_told(
    tmp_path: Path, words: list[str], said: str
) -> None:
    assert ran(tmp_path, words, "zk:1").stdout.strip() == said


def test_zookeeper_of_the_container_itself_is_none(tmp_path: Path) -> None:
    """testcontainers names it for images that contain one."""
    done = ran(tmp_path, [], "localhost:2181")

    assert done.stdout.strip().endswith("zookeeper=")
    assert "this container has no ZooKeeper" in done.stderr


def ran(tmp_path: Path, words: list[str], zookeeper: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "kbroker"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", str(CONFIG / "container-run"), *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path, "KAFKA_ZOOKEEPER_CONNECT": zookeeper},
    )
