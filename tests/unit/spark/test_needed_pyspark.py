"""Without PySpark, or with one that is too old, an error says which one is needed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kbroker.spark.needed_pyspark import NEEDED

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
USES = {
    "source": "import kbroker.spark.source",
    "extension": "import pyspark_kbroker",
    "builder": "kbroker.spark.builder()",
    "alias": "kbroker.spark.install_kafka_alias()",
    "register": "kbroker.spark.register(None)",
}


def test_version_is_that_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    assert NEEDED in extras["spark"]
    assert "4.2 or 4.3" in __import__("kbroker.spark.needed_pyspark", fromlist=["x"]).unusable(
        ImportError("none")
    )


def run(program: str) -> str:
    """The last line on standard error of a program that fails."""
    done = subprocess.run(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("use", USES)
def test_missing_pyspark_is_named(use: str) -> None:
    said = run(f"import sys; sys.modules['pyspark'] = None\nimport kbroker.spark\n{USES[use]}")

    assert said.startswith("ImportError: kbroker needs PySpark 4.2 or 4.3 (pyspark>=4.2,<4.4)")
    assert "there is none" in said and said.endswith("'pandas>=2.2,<3'")


def test_command_without_pyspark_names_it_and_the_way_without() -> None:
    said = run(
        "import sys; sys.modules['pyspark'] = None\n"
        "from kbroker.spark.direct import runner_of, SparkMissing\n"
        "runner_of('app', None).parallelism"
    )

    assert "SparkMissing: kbroker needs PySpark 4.2 or 4.3" in said
    assert said.endswith("; or use --master none to run without Spark")


@pytest.mark.parametrize("use", ["source", "extension", "register"])
def test_old_pyspark_is_named(tmp_path: Path, use: str) -> None:
    """3.5 has no data sources in Python, 4.0 none for Arrow."""
    old = tmp_path / "pyspark"
    (old / "sql").mkdir(parents=True)
    (old / "__init__.py").touch()
    (old / "version.py").write_text("__version__ = '3.5.8'\n")
    (old / "sql/__init__.py").touch()

    said = run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport kbroker.spark\n{USES[use]}"
    )

    assert "kbroker needs PySpark 4.2 or 4.3" in said and "this is PySpark 3.5.8" in said
