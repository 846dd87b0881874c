"""``kafka-run-class``: a tool by the name of its Java class, also as it was in 0.8."""

from __future__ import annotations

import sys

from kbroker.cli.kafka.scripts import Script, detach

_FLAGS = ("-loggc",)


def _run(words: list[str]) -> int:
    from kbroker.cli.kafka import table

    behind, name = False, "kafka"
    while words and words[0] in ("-daemon", "-name", *_FLAGS):
        word = words.pop(0)
        behind = behind or word == "-daemon"
        if word == "-name" and words:
            name = words.pop(0)
    if not words:
        print(f"USAGE: {SCRIPT.usage}", file=sys.stderr)
        return 1
    known = {each: tool for tool, entry in table.TOOLS.items() for each in entry.classes}
    tool = known.get(words[0])
    if tool is None:
        from kbroker.cli.arguments import nearest  # only errors need it

        near = nearest(words[0], known)
        instead = f"did you mean {near}?" if near else f"there are {', '.join(sorted(known))}"
        print(f"Error: Could not find or load main class {words[0]}; {instead}", file=sys.stderr)
        return 1
    if behind and not detach(name):
        return 0
    return table.main(words[1:], tool)


SCRIPT = Script("kafka-run-class.sh [-daemon] [-name servicename] [-loggc] classname [opts]", _run)
