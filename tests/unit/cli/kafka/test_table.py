"""All tools: their names, modules, links and installed commands."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kbroker.cli.kafka import table
from kbroker.cli.kafka.options import usage
from kbroker.cli.kafka.parsers import ParsedTool
from kbroker.cli.kafka.running import Tool
from kbroker.cli.kafka.scripts import Script

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[4]


def test_every_tool_is_a_link_and_an_installed_command():
    links = {path.stem for path in (ROOT / "bin").glob("*.sh")}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    installed = {name for name, target in scripts.items() if target.endswith(":kafka_tool")}

    assert links == installed == set(table.TOOLS)


def test_every_tool_has_a_row_on_its_page():
    page = (ROOT / "docs" / "kafka-tools.md").read_text(encoding="utf-8")

    assert sorted(re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.M)) == sorted(table.TOOLS)


def tool_of(name: str):
    entry = table.TOOLS[name]
    return entry.load()


def names_of(kind: type) -> list[str]:
    return [name for name in table.TOOLS if isinstance(tool_of(name), kind)]


@pytest.mark.parametrize("name", names_of(Tool))
def test_tool_without_arguments_prints_its_options_and_fails(capsys, name):
    tool = tool_of(name)

    assert table.main([], name) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(f"--{option.name}" in captured.err for option in tool.options)
    assert all(len(line) <= 80 for line in usage(tool.options).splitlines())


@pytest.mark.parametrize("name", names_of(ParsedTool))
def test_parsed_tool_without_arguments_prints_all_its_words(capsys, name):
    tool = tool_of(name)

    assert table.main([], name) == tool.alone
    captured = capsys.readouterr()
    said = captured.err if tool.alone else captured.out
    for action in tool.build()._actions:
        for word in [*action.option_strings, *(action.choices or ())]:
            assert str(word) in said


@pytest.mark.parametrize("name", names_of(Script))
def test_script_prints_its_usage(capsys, name):
    assert table.main(["--help"], name) == 1
    assert capsys.readouterr().err.startswith(f"USAGE: {name}.sh ")


@pytest.mark.parametrize("name", [*names_of(Tool), *names_of(ParsedTool)])
def test_unknown_option_is_named_and_version_is_printed(capsys, name):
    assert table.main(["--bogus"], f"{name}.sh") == 1
    said = capsys.readouterr().err
    assert "bogus is not a recognized option" in said or "error: " in said
    assert table.main(["--version"], name) == 0
    assert "kbroker" in capsys.readouterr().out


def test_every_class_is_that_of_one_tool():
    classes = [name for entry in table.TOOLS.values() for name in entry.classes]

    assert len(classes) == len(set(classes))


def test_unknown_tool_names_those_that_there_are(capsys):
    assert table.main([], "kafka-frob") == 1
    assert "kafka-topics" in capsys.readouterr().err


def test_list_of_topics_imports_neither_the_producer_nor_other_tools():
    """What keeps its start short."""
    code = (
        "import sys; from kbroker.cli.kafka import table; "
        "table.main(['--list', '--bootstrap-server', 'x'], 'kafka-topics'); "
        "print([name for name in sys.modules if 'producer' in name or 'consumer' in name "
        "or name in ('ssl', 'logging', 'asyncio', 'kazoo', 're2')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
