"""``kbroker completion``: scripts for shells, which ask ``kbroker __complete`` for words."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.cli.arguments import Action, CommandParser

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster

# BOUND: seconds that a key press may wait for brokers.
TIMEOUT_S = "2"
SCRIPTS = {
    "bash": """\
# kbroker completion for bash: source <(kbroker completion bash)
_kbroker() {
    local IFS=$'\\n'
    COMPREPLY=($(kbroker __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _kbroker kbroker
""",
    "zsh": """\
#compdef kbroker
# kbroker completion for zsh: source <(kbroker completion zsh)
_kbroker() {
    local -a found
    found=("${(@f)$(kbroker __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -a found
}
compdef _kbroker kbroker
""",
    "fish": """\
# kbroker completion for fish: kbroker completion fish | source
function __kbroker_complete
    set -l words (commandline -opc)
    kbroker __complete $words[2..-1] (commandline -ct | string collect --allow-empty) 2>/dev/null
end
complete -c kbroker -f -a '(__kbroker_complete)'
""",
}


def _topics(cluster: Cluster) -> list[str]:
    from kbroker.client.admin.topics import list_topics

    return [topic.name for topic in list_topics(cluster) if not topic.internal]


def _groups(cluster: Cluster) -> list[str]:
    from kbroker.client.admin.groups import list_groups

    return [row.group for row in list_groups(cluster)]


def _brokers(cluster: Cluster) -> list[str]:
    return list(map(str, cluster.nodes()))


def _transactional_ids(cluster: Cluster) -> list[str]:
    from kbroker.client.admin.transactions import list_transactions

    return [row.transactional_id for row in list_transactions(cluster)]


# Metavars of arguments whose values the brokers know.
_LIVE: Mapping[str, Callable[[Cluster], list[str]]] = {
    "TOPIC": _topics,
    "GROUP": _groups,
    "BROKER": _brokers,
    "TRANSACTIONAL-ID": _transactional_ids,
}


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(SCRIPTS), metavar="SHELL", help=", ".join(SCRIPTS))


def _completion(options: argparse.Namespace) -> None:
    print(SCRIPTS[options.shell], end="")


def candidates(verbs: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """What the last of these words, after ``kbroker``, may become."""
    *before, current = words or [""]
    return sorted(word for word in _possible(verbs, before, current) if word.startswith(current))


def _possible(verbs: Mapping[str, str], before: Sequence[str], current: str) -> Iterable[str]:
    if not before:
        return verbs
    if before[0] not in verbs:
        return []
    from kbroker.cli.command import module_of

    module = module_of(before[0])
    action, rest = getattr(module, "ACTION", None), before[1:]
    if action is None:
        actions: Mapping[str, Action] = getattr(module, "ACTIONS", {})
        if not rest:
            return actions
        if rest[0] not in actions:
            return []
        action, rest = actions[rest[0]], rest[1:]
    return _words(action.parser(""), rest, current)


def _words(parser: CommandParser, rest: Sequence[str], current: str) -> Iterable[str]:
    """Options; values of an option with choices; names that the brokers know."""
    options = {text: each for each in parser._actions for text in each.option_strings}
    if current.startswith("-"):
        return [text for text in options if text.startswith("--")]
    option = options.get(rest[-1]) if rest else None
    if option is not None and option.nargs != 0:
        if option.choices is not None:
            return [str(choice) for choice in option.choices]
        named = rest[-1].strip("-").upper()  # --topic NAME
        return _live(parser, rest[:-1], named if named in _LIVE else option.metavar)
    positional = [each for each in parser._actions if not each.option_strings]
    at = _position(options, rest)
    if not positional or (at >= len(positional) and positional[-1].nargs not in ("+", "*")):
        return []
    each = positional[min(at, len(positional) - 1)]
    if each.choices is not None:
        return [str(choice) for choice in each.choices]
    return _live(parser, rest, each.metavar)


def _position(options: Mapping[str, argparse.Action], rest: Sequence[str]) -> int:
    """How many words there are that belong to no option."""
    count, is_value = 0, False
    for word in rest:
        option = options.get(word)
        if option is not None:
            is_value = option.nargs != 0
        elif is_value or word.startswith("-"):
            is_value = False
        else:
            count += 1
    return count


def _live(parser: CommandParser, rest: Sequence[str], metavar: object) -> list[str]:
    """The names that brokers have; none, if they cannot be asked."""
    name = str(metavar).partition("[")[0]
    if name == "NAME" and rest:  # of a resource, after its kind
        name = rest[0].upper()
    if name == "PROFILE":
        from kbroker.cli import profiles

        return profiles.names()
    if name not in _LIVE:
        return []
    from kbroker.cli.arguments import CommandFailed, Usage
    from kbroker.cli.connecting import connected

    given = _connection(rest)
    try:
        options = _connection_parser().parse_all([*given, "--timeout", TIMEOUT_S])
        with connected(options) as cluster:
            return _LIVE[name](cluster)
    except (CommandFailed, Usage):
        return []


def _connection(rest: Sequence[str]) -> list[str]:
    """Of the words so far, those that say which cluster."""
    wanted = {"-b", "--bootstrap-server", "--command-config", "--profile"}
    given: list[str] = []
    for at, word in enumerate(rest):
        if word in wanted and at + 1 < len(rest):
            given += [word, rest[at + 1]]
        elif word.partition("=")[0] in wanted and "=" in word:
            given.append(word)
    return given


def _connection_parser() -> CommandParser:
    from kbroker.cli.connecting import add_connection

    parser = CommandParser(add_help=False, allow_abbrev=False)
    add_connection(parser)
    return parser


_EPILOG = """\
examples:
  source <(kbroker completion bash)            in ~/.bashrc
  source <(kbroker completion zsh)             in ~/.zshrc, after compinit
  kbroker completion fish | source             in ~/.config/fish/config.fish

Names of topics and groups are asked from the brokers of KBROKER_BOOTSTRAP_SERVER, or of -b."""

ACTION = Action("print the completion script of a shell", _describe, _completion, _EPILOG)
