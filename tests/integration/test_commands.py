"""The installed commands: the effect of Ctrl-C before they have started."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from support.running.grids import some_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SCRIPTS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
    "scripts"
]
# By what they run: those of the others differ in their names.
ONE_OF_EACH = list({target: name for name, target in reversed(SCRIPTS.items())}.values())
# The script written by pip, with a Ctrl-C when the module is looked up; "" is kbroker's first
# import.
PROGRAM = """
import os, signal, sys
sys.argv[0], module, function, where = sys.argv[1:5]
del sys.argv[1:5]
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == where or not where and name.startswith("kbroker.") and name != module:
            os.kill(os.getpid(), signal.SIGTERM if "terminate" in sys.argv else signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins without
if "ignored" in sys.argv:
    sys.argv.remove("ignored")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
command = getattr(__import__(module, fromlist=["_"]), function)
sys.exit(command())
"""


def run(name: str, where: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code and output of a command that is interrupted."""
    module, _, function = SCRIPTS[name].partition(":")
    words = [sys.executable, "-c", PROGRAM, name, module, function, where, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", some_of(SCRIPTS, ONE_OF_EACH))
def test_interrupted_while_it_is_imported_a_command_ends_quietly(name: str) -> None:
    # Were it not interrupted, a command without words might stop other tests' brokers.
    assert run(name, "", "--version") == (130, "", "")


@pytest.mark.parametrize("name", ["kbroker-load", "kbroker-audit", "kbroker-spark-mirror"])
def test_terminated_while_it_is_imported_a_job_ends_quietly(name: str) -> None:
    assert run(name, "", "terminate") == (143, "", "")


def test_interrupted_in_its_first_lines_a_broker_ends_quietly() -> None:
    """It handles signals itself once it has read its configs."""
    assert run("kbroker-supervisor", "kbroker.supervisor.launch") == (130, "", "")


@pytest.mark.parametrize("name", some_of(SCRIPTS, ONE_OF_EACH))
def test_interrupt_that_the_shell_has_switched_off_stays_off(name: str) -> None:
    """Kafka's tools end with 1 after their help."""
    is_kafkas = SCRIPTS[name].endswith(":kafka_tool")
    code, said, _ = run(name, "", "--version" if is_kafkas else "--help", "ignored")

    assert code == 0
    assert said.startswith(version("kbroker") if is_kafkas else f"usage: {name}")
