"""The shipped files, and the documentation generated from the table."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from kbroker.config.broker_keys import BROKER_KEYS
from kbroker.config.group_config import GROUP_KEYS
from kbroker.config.key import BUILT, READ_ONLY
from kbroker.config.loader import load
from kbroker.config.table import rules
from kbroker.config.topic_keys import TOPIC_KEYS
from kbroker.properties import read_properties

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
ZOOKEEPERS = ROOT / "config" / "zookeeper.properties"
SHIPPED = sorted(path for path in (ROOT / "config").glob("*.properties") if path != ZOOKEEPERS)
COMMENTED = re.compile(r"^#([a-z][a-z0-9.]*\.[a-z0-9.]+)=(.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def gen_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "tools" / "gen_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_files_are_shipped():
    assert {path.name for path in SHIPPED} >= {"server.properties", "dev.properties"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_file_loads_without_a_warning(path):
    config, warnings = load(str(path))

    assert warnings == []
    assert {listener.host for listener in config.listeners} == {"127.0.0.1"}
    for name, _ in read_properties(str(path)):
        assert BROKER_KEYS[name].status == BUILT


@pytest.mark.parametrize(
    "added", ["port=9093\nlog.dir=/l", "listeners=PLAINTEXT://127.0.0.1:9093\nlog.dirs=/l"]
)
def test_lines_added_to_a_copy_of_the_shipped_file_count(tmp_path, added):
    """SMP-04: documents show three lines that make a second broker of a copy."""
    path = tmp_path / "server-1.properties"
    shipped = (ROOT / "config" / "server.properties").read_text()
    path.write_text(f"{shipped}\nbroker.id=1\n{added}\n")

    config, _ = load(str(path))

    assert (config.broker_id, config.log_dirs) == (1, ["/l"])
    assert list(map(str, config.listeners)) == ["PLAINTEXT://127.0.0.1:9093"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_commented_setting_of_a_shipped_file_exists_and_is_allowed(path):
    for name, text in COMMENTED.findall(path.read_text()):
        BROKER_KEYS[name].parse(text)


def test_shipped_server_file_shows_true_defaults_and_marks_what_is_live():
    text = (ROOT / "config" / "server.properties").read_text()
    examples = {
        "listeners",
        "advertised.listeners",
        "log.flush.interval.messages",
        "zookeeper.connect",
    }
    by_cores = {"num.network.threads", "num.io.threads"}

    shown = dict(COMMENTED.findall(text))

    assert len(shown) > 10
    for name, value in shown.items():
        key = BROKER_KEYS[name]
        if name not in examples | by_cores:
            assert key.parse(value) == key.default, name
    for block in text.split("\n\n"):
        if "[live]" in block and "Change:" not in block:
            names = re.findall(r"^#?([a-z][a-z0-9.]*\.[a-z0-9.]+)=", block, re.MULTILINE)
            assert names, block
            for name in names:
                units = BROKER_KEYS[name].synonyms
                assert any(BROKER_KEYS[unit].dynamic != READ_ONLY for unit in units), name


def test_manual_is_fresh(gen_docs):
    assert gen_docs.main(["--check"]) == 0


def test_check_finds_a_stale_document_and_writing_mends_it(gen_docs, tmp_path, capsys):
    assert gen_docs.main(["--check"], tmp_path) == 1
    assert "docs/configuration.md is stale" in capsys.readouterr().err

    assert gen_docs.main([], tmp_path) == 0
    assert gen_docs.main(["--check"], tmp_path) == 0

    (tmp_path / "docs" / "configuration.md").write_text("old")
    assert gen_docs.main(["--check"], tmp_path) == 1


def test_manual_does_not_depend_on_the_machine(gen_docs, monkeypatch):
    before = gen_docs.configuration()
    monkeypatch.setattr(rules, "core_count", lambda: 64)

    assert gen_docs.configuration() == before


def test_manual_names_every_setting_and_marks_those_not_built(gen_docs):
    rows = [line for line in gen_docs.configuration().splitlines() if line.startswith("| `")]

    assert len(rows) == len(BROKER_KEYS) + len(TOPIC_KEYS) + len(GROUP_KEYS)
    by_name = {row.split("`")[1]: row for row in rows[: len(BROKER_KEYS)]}
    assert by_name["log.dir.failure.timeout.ms"].endswith("| *later* |")
    assert by_name["log.segment.bytes"].endswith("| built |")
