"""``kafka-server-start``: a broker, in the foreground or with ``-daemon`` behind it."""

from __future__ import annotations

import os

from kbroker.cli.kafka.running import Failed
from kbroker.cli.kafka.scripts import Script, detach, own_python


def _run(words: list[str]) -> int:
    if words[0] == "-daemon":
        words = words[1:]
        if not words:
            raise Failed(f"USAGE: {SCRIPT.usage}")
        if not detach("kafkaServer"):
            return 0
    command = own_python("supervisor", words)
    os.execv(command[0], command)


SCRIPT = Script(
    "kafka-server-start.sh [-daemon] server.properties [--override property=value]*", _run
)
