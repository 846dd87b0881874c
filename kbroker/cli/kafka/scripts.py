"""Scripts of Kafka's ``bin`` that have words instead of options: they run something, or pass on
what they get.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

_OUTPUT_DIR = "logs"


class Script(NamedTuple):
    """usage: one line, for stderr. run: gets the words, returns the exit code. least: how many
    words it needs.
    """

    usage: str
    run: Callable[[list[str]], int]
    least: int = 1

    def main(self, words: Sequence[str]) -> int:
        """Run it; exit code 1 and its usage for too few words, or for ``--help``."""
        from kbroker.cli.kafka.running import guarded, version_text

        if "--version" in words[:1]:
            print(version_text())
            return 0
        if len(words) < self.least or "--help" in words[:1]:
            print(f"USAGE: {self.usage}", file=sys.stderr)
            return 1
        return guarded(lambda: self.run(list(words)))


def detach(name: str) -> bool:
    """Let the rest run in the background, with its output in ``$LOG_DIR/NAME.out``; whether this is
    the process of the rest. The directory is ``logs`` here if LOG_DIR is not set.
    """
    directory = os.environ.get("LOG_DIR", _OUTPUT_DIR)
    os.makedirs(directory, exist_ok=True)
    sys.stdout.flush()
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    output = os.open(
        os.path.join(directory, f"{name}.out"),
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
        0o644,
    )
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    return True


def own_python(program: str, words: Sequence[str]) -> list[str]:
    """The command that runs a function of ``kbroker.commands`` with these words, in a process of
    its own.
    """
    import kbroker

    home = os.path.dirname(os.path.dirname(os.path.abspath(kbroker.__file__)))
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from kbroker import commands; "
        f"sys.argv[0] = 'kbroker-{program}'; sys.exit(commands.{program}())"
    )
    return [sys.executable, "-c", code, home, *words]
