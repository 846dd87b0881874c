"""``kafka-server-stop``: end the brokers on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from kbroker.cli.kafka.running import ToolFailed
from kbroker.cli.kafka.scripts import Script

_TITLE = "kbroker: supervisor"


def _run(words: list[str]) -> int:
    name = os.environ.get("SIGNAL", "TERM")
    number = getattr(signal, f"SIG{name.removeprefix('SIG')}", None)
    if not isinstance(number, signal.Signals):
        raise ToolFailed(f"SIGNAL={name}: there is no such signal")
    stopped = 0
    for pid, title in processes():
        if title.startswith(_TITLE) and all(word in title for word in words):
            try:
                os.kill(pid, number)
                stopped += 1
            except (ProcessLookupError, PermissionError):
                continue
    if not stopped:
        print("No kafka server to stop")
        return 1
    return 0


def processes(root: str = "/proc") -> Iterator[tuple[int, str]]:
    """The processes of this machine, with their command lines."""
    for name in os.listdir(root):
        if not name.isdecimal():
            continue
        try:
            with open(f"{root}/{name}/cmdline", "rb") as file:
                text = file.read()
        except OSError:
            continue
        yield int(name), text.replace(b"\0", b" ").decode(errors="replace").strip()


SCRIPT = Script(
    "kafka-server-stop.sh [word ...]: of all brokers, or of those that have each word in their "
    "title, such as the port or the directory of the data",
    _run,
    least=0,
)
