"""``kafka-server-start``: a broker, in the foreground or with ``-daemon`` behind it."""

from __future__ import annotations

import argparse
import os
import sys

from kbroker.cli.kafka.local_zookeeper import choose, running_zookeepers
from kbroker.cli.kafka.running import ToolFailed
from kbroker.cli.kafka.scripts import Script, detach, own_python
from kbroker.cli.kafka.zookeeper_start import jars


def _run(words: list[str]) -> int:
    behind = words[0] == "-daemon"
    if behind:
        words = words[1:]
        if not words:
            raise ToolFailed(f"USAGE: {SCRIPT.usage}")
    words = [*words, *_zookeeper(words)]
    if behind and not detach("kafkaServer"):
        return 0
    command = own_python("supervisor", words)
    os.execv(command[0], command)


def _zookeeper(words: list[str]) -> list[str]:
    """Options to add. Nothing for words and files that the broker itself will reject."""
    from kbroker.config.loader import PropertiesError, load, parse_overrides
    from kbroker.errors import ConfigError

    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("file", nargs="?")
    parser.add_argument("-c", "--config")
    parser.add_argument("--override", action="append", default=[])
    try:
        options, _ = parser.parse_known_args(words)
        config, _ = load(options.config or options.file, parse_overrides(options.override))
    except (argparse.ArgumentError, PropertiesError, ConfigError, OSError):
        return []
    choice = choose(config, running_zookeepers(jars() or ""))
    if choice.note is not None:
        print(f"kafka-server-start: {choice.note}", file=sys.stderr)
    return [f"--override={name}={text}" for name, text in choice.overrides.items()]


SCRIPT = Script(
    "kafka-server-start.sh [-daemon] server.properties [--override property=value]*", _run
)
