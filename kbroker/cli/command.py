"""``kbroker``: one command with verbs.

``VERBS`` is the one place that a verb is added to: its module in ``kbroker.cli.verbs``, of the same
name with ``_`` for other signs, has
``ACTIONS``, each with its own arguments, or a single ``ACTION``, or a ``main`` that does everything
by itself. Only the module of the verb that was given is imported. Without a verb it is ``start``.

Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

from kbroker import __version__
from kbroker.cli.arguments import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    Action,
    CommandFailed,
    Exit,
    Usage,
    nearest,
)

# Verb -> what it is about.
VERBS = {
    "acl": "who may do what: add, list and delete ACLs",
    "bench": "measure how fast records are written and read",
    "bundle": "collect what a report of a problem needs, without secrets",
    "certs": "create and renew certificates for a test or a small site",
    "cluster": "move replicas by intent: drain brokers, balance, spread topics, replicate",
    "completion": "print the completion script of a shell",
    "config": "get, set and unset settings of topics, brokers, groups and client metrics",
    "consume": "print the records of topics",
    "doctor": "find out what is wrong, and what mends it",
    "generate": "print what Prometheus, Grafana and writers of clients need",
    "group": "list, describe and delete consumer groups, and reset their offsets",
    "health": "check a broker, or its cluster",
    "import-0.7": "fill topics from log directories of Kafka 0.7",
    "log": "inspect, check and repair log files while no broker uses them",
    "log-dir": "list the log directories of brokers",
    "mirror": "copy topics to another cluster",
    "produce": "write lines of stdin as records",
    "profile": "keep settings for several clusters, and choose among them",
    "quota": "list and set how much clients may do",
    "reassignment": "list, begin and cancel moves of partitions between brokers",
    "sample": "print or copy configuration files, a systemd unit and a Containerfile",
    "start": "run a broker; the same as kbroker alone",
    "status": "show the brokers and what they have",
    "stop": "end the broker on this machine",
    "top": "watch the processes, topics, clients and groups of a broker",
    "topic": "list, create, describe, alter and delete topics",
    "transaction": "list, describe and abort transactions, and find those that hang",
    "user": "who may log in: add, list and delete SCRAM credentials",
}

COMPLETE = "__complete"
# Of more a suggestion has to do.
_LISTED_MAX = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    said = "kbroker"
    try:
        given = given or ["start"]
        if given[0] in ("-h", "--help", "help"):
            print(_help_text("kbroker", "VERB", VERBS))
            return EXIT_OK
        if given[0] == COMPLETE:
            return _complete(given[1:])
        if given[0] in ("--version", "version"):
            print(f"kbroker {__version__}")
            return EXIT_OK
        if given[0].startswith("-"):
            raise Usage(f"{given[0]}: options follow a verb, as in kbroker topic list -o json")
        verb = _one_of(VERBS, given[0], "verb")
        said = f"kbroker {verb}"
        module = module_of(verb)
        if hasattr(module, "ACTION"):
            module.ACTION.run_with(said, given[1:])
            return EXIT_OK
        if hasattr(module, "main"):
            return int(module.main(given[1:]))
        actions: dict[str, Action] = module.ACTIONS
        texts = {name: action.title for name, action in actions.items()}
        if len(given) < 2 or given[1] in ("-h", "--help", "help"):
            print(_help_text(said, "ACTION", texts))
            return EXIT_OK if len(given) > 1 else EXIT_USAGE
        name = _one_of(actions, given[1], "action")
        said = f"kbroker {verb} {name}"
        actions[name].run_with(said, given[2:])
        return EXIT_OK
    except Exit as done:
        return done.code
    except Usage as error:
        print(f"{said}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except CommandFailed as error:
        print(f"{said}: {error}", file=sys.stderr)
        return EXIT_FAILED


def module_of(verb: str) -> ModuleType:
    """The module of a verb, imported."""
    name = verb.replace("-", "_").replace(".", "_")
    if verb == "import-0.7":
        return importlib.import_module(f"kbroker.legacy.commands.{name}")
    return importlib.import_module(f"kbroker.cli.verbs.{name}")


def _complete(words: Sequence[str]) -> int:
    """For the scripts of ``kbroker completion``: what the last word may become."""
    from kbroker.cli.verbs.completion import candidates

    for word in candidates(VERBS, words):
        print(word)
    return EXIT_OK


def _one_of(known: Mapping[str, object], given: str, kind: str) -> str:
    if given in known:
        return given
    meant = nearest(given, known)
    listed = f"there are {', '.join(known)}"
    if meant is None:
        raise Usage(f"no {kind} {given!r}: {listed}")
    more = f" ({listed})" if len(known) <= _LISTED_MAX else ""
    raise Usage(f"no {kind} {given!r}: did you mean {meant!r}?{more}")


def _help_text(said: str, what: str, texts: Mapping[str, str]) -> str:
    width = max(10, *(len(name) + 2 for name in texts))
    rows = [f"  {name:<{width}}{text}" for name, text in texts.items()]
    kind = what.lower()
    return "\n".join(
        [
            f"usage: {said} {what} ...",
            "",
            *rows,
            "",
            f"{said} {what} --help tells about one {kind}.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
