"""``kbroker-load`` with ``spark-submit`` on a standalone master with two workers on this machine.

The executors get kbroker in an archive, as docs/load.md tells: nothing of this checkout is on their
path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support.clients.topics import create_topic
from support.spark.load_records import all_places, places_in, produce
from support.spark.spark_cluster import cluster, spark_home

from kbroker.testing import Broker

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
COUNTS = [5000, 700]


def packed_environment(place: Path) -> Path:
    """The result of ``venv-pack``: a relocatable environment with kbroker and this one's packages.

    The interpreter is that of this machine; the packages are linked, for time: what matters is
    that executors find kbroker below the archive and nowhere else.
    """
    env = place / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    packages = next(env.glob("lib/python*/site-packages"))
    shutil.copytree(
        ROOT / "kbroker", packages / "kbroker", ignore=shutil.ignore_patterns("__pycache__")
    )
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(others) + "\n")
    archive = place / "kbroker-env.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(env, arcname=".")
    return archive


def test_load_by_spark_submit_on_two_workers_has_every_record_once(
    kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(kbroker_broker.bootstrap, topic, 2)
    produce(kbroker_broker.bootstrap, topic, COUNTS)
    archive = packed_environment(tmp_path)
    env = tmp_path / "env"
    (script,) = env.glob("lib/python*/site-packages/kbroker/spark/load/cli.py")
    lake = tmp_path / "lake"
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "SPARK_HOME"):
        base.pop(name, None)
    # The executors find ./env, which does not exist where the command is run.
    (tmp_path / "elsewhere").mkdir()

    with cluster(tmp_path, ["127.0.0.1"] * 2) as master:
        done = subprocess.run(
            [
                str(spark_home() / "bin/spark-submit"),
                *("--master", master),
                *("--archives", f"{archive}#env"),
                *("--conf", "spark.pyspark.python=./env/bin/python"),
                *("--conf", f"spark.pyspark.driver.python={env}/bin/python"),
                *("--conf", "spark.executor.memory=512m"),
                *("--conf", "spark.driver.host=127.0.0.1"),
                *("--name", "load", str(script), "run"),
                *("--bootstrap", kbroker_broker.bootstrap),
                *("--topics", topic, "--dest", str(lake), "--split", "partition"),
            ],
            env=base | {"SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=tmp_path / "elsewhere",
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    assert done.returncode == 0, done.stdout + done.stderr
    assert places_in(lake, topic) == all_places(COUNTS)
    used = [path for path in tmp_path.glob("work-*/app-*/*") if path.is_dir()]
    assert len(used) == 2, "both workers ran an executor"
