"""Which tests belong to a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import tests_of

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return tests_of.importers()


def test_every_module_is_reached_by_a_test(graph):
    modules = {
        name
        for name in graph
        if name.startswith("kbroker.") and not (tests_of.ROOT / name.replace(".", "/")).is_dir()
    }

    assert len(modules) > 400
    assert not {name for name in modules if not tests_of.nearest_tests(name, graph)}


@pytest.mark.parametrize(
    ("module", "test"),
    [
        ("kbroker/clock.py", "tests/unit/test_clock.py"),
        ("ext/kbroker/_ext/log/committed_queue.pyx", "tests/unit/workers/test_committed_queue.py"),
        ("kbroker/handlers/acls.py", "tests/unit/handlers/test_authorization.py"),
        ("kbroker/protocol/messages/broker_heartbeat.py", "tests/unit/protocol/test_message.py"),
        ("kbroker/workers/acceptor.py", "tests/unit/ipc/test_calls.py"),
    ],
    ids=["imported", "extension", "found in its package", "loaded by name", "in a table"],
)
def test_nearest_tests_are_named(module, test, graph):
    assert test in tests_of.nearest_tests(tests_of.module_name(Path(module)), graph)


def test_module_that_does_not_exist_is_told(capsys):
    assert tests_of.main(["kbroker/clocks.py"]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    # A thread of an earlier test may log here, too.
    assert "no such module: kbroker.clocks\n" in said.err


def test_tests_of_several_modules_are_printed_once_each(capsys):
    assert tests_of.main(["kbroker/clock.py", "kbroker/clock.py"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines == sorted(set(lines)) and "tests/unit/test_clock.py" in lines
