"""``zookeeper-shell``: look at the nodes of a ZooKeeper, and change them."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.running import ToolFailed, properties_of
from kbroker.cli.kafka.scripts import Script
from kbroker.cli.kafka.zookeeper import tls_of

if TYPE_CHECKING:
    from kbroker.client.zookeeper.znodes import Znodes
    from kbroker.client.zookeeper.zookeeper_tls import ZooKeeperTls

_TLS = "-zk-tls-config-file"
Flags = dict[str, str | bool]
_HELP = """\
create [-s] [-e] path [data]
delete [-v version] path
deleteall path
get [-s] path
getAcl path
ls [-s] [-R] path
quit
set [-s] [-v version] path data
stat path"""


def _run(words: list[str]) -> int:
    from kbroker.client.zookeeper.znodes import Znodes

    words, tls = _tls(words)
    if not words:
        raise ToolFailed(f"USAGE: {SCRIPT.usage}")
    connect, command = words[0], words[1:]
    print(f"Connecting to {connect}", flush=True)
    with Znodes(connect, tls) as nodes:
        print("\nWATCHER::\n\nWatchedEvent state:SyncConnected type:None path:null")
        return _do(nodes, command) if command else _ask(nodes)


def _tls(words: list[str]) -> tuple[list[str], ZooKeeperTls | None]:
    """The words without the file with ``zookeeper.ssl.`` settings, and what is in it."""
    if _TLS not in words:
        return words, None
    at = words.index(_TLS)
    if at + 1 == len(words):
        raise ToolFailed(f"Error: no filename provided with option {_TLS}")
    path = words[at + 1]
    return words[:at] + words[at + 2 :], tls_of(properties_of(path), path)


def _ask(nodes: Znodes) -> int:
    """Commands from the terminal, or of standard input."""
    print("Welcome to ZooKeeper!")
    if sys.stdin.isatty():
        import readline  # noqa: F401  for input()
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return 0
        try:
            words = shlex.split(line)
        except ValueError as error:
            print(f"{line}: {error}")
            continue
        if words[:1] in (["quit"], ["exit"]):
            return 0
        if words:
            _do(nodes, words)


def _do(nodes: Znodes, words: list[str]) -> int:
    """One command; the exit code."""
    from kbroker.client.zookeeper.znodes import ZnodeError

    command = _COMMANDS.get(words[0])
    if command is None:
        print(_HELP)
        return 0 if words[0] == "help" else 1
    flags: Flags = {}
    rest = words[1:]
    while rest and rest[0].startswith("-") and len(rest[0]) == 2:
        flag = rest.pop(0)
        flags[flag] = rest.pop(0) if flag == "-v" and rest else True
    if not rest or not rest[0].startswith("/"):
        print(f"{words[0]}: give a path, as /brokers")
        return 1
    try:
        command(nodes, rest, flags)
        return 0
    except ZnodeError as error:
        print(error, file=sys.stderr)
    except (IndexError, ValueError) as error:
        print(f"{' '.join(words)}: {error}", file=sys.stderr)
    return 1


def _version(flags: Flags) -> int:
    return int(flags.get("-v", -1))


def _ls(nodes: Znodes, words: list[str], flags: Flags) -> None:
    if "-R" in flags:
        for path in nodes.below(words[0]):
            print(path)
        return
    names, stat = nodes.children(words[0])
    print(f"[{', '.join(names)}]")
    if "-s" in flags:
        _print_stat(stat)


def _get(nodes: Znodes, words: list[str], flags: Flags) -> None:
    data, stat = nodes.get(words[0])
    print(data.decode(errors="replace"))
    if "-s" in flags:
        _print_stat(stat)


def _stat(nodes: Znodes, words: list[str], flags: Flags) -> None:
    _print_stat(nodes.get(words[0])[1])


def _print_stat(stat: Any) -> None:
    def when(ms: int) -> str:
        return time.strftime("%a %b %d %H:%M:%S %Z %Y", time.localtime(ms / 1000))

    rows = {
        "cZxid": hex(stat.czxid),
        "ctime": when(stat.ctime),
        "mZxid": hex(stat.mzxid),
        "mtime": when(stat.mtime),
        "pZxid": hex(stat.pzxid),
        "cversion": stat.cversion,
        "dataVersion": stat.version,
        "aclVersion": stat.aversion,
        "ephemeralOwner": hex(stat.ephemeralOwner or 0),
        "dataLength": stat.dataLength,
        "numChildren": stat.numChildren,
    }
    for name, value in rows.items():
        print(f"{name} = {value}")


def _create(nodes: Znodes, words: list[str], flags: Flags) -> None:
    data = words[1].encode() if len(words) > 1 else b""
    made = nodes.create(words[0], data, ephemeral="-e" in flags, sequence="-s" in flags)
    print(f"Created {made}")


def _set(nodes: Znodes, words: list[str], flags: Flags) -> None:
    stat = nodes.set(words[0], words[1].encode(), _version(flags))
    if "-s" in flags:
        _print_stat(stat)


def _delete(nodes: Znodes, words: list[str], flags: Flags) -> None:
    nodes.delete(words[0], _version(flags))


def _delete_all(nodes: Znodes, words: list[str], flags: Flags) -> None:
    nodes.delete(words[0], below=True)


def _get_acl(nodes: Znodes, words: list[str], flags: Flags) -> None:
    rights = ((4, "c"), (8, "d"), (1, "r"), (2, "w"), (16, "a"))
    for row in nodes.acls(words[0]):
        print(f"'{row.id.scheme},'{row.id.id}")
        print(f": {''.join(letter for bit, letter in rights if row.perms & bit)}")


_COMMANDS = {
    "ls": _ls,
    "get": _get,
    "stat": _stat,
    "create": _create,
    "set": _set,
    "delete": _delete,
    "deleteall": _delete_all,
    "rmr": _delete_all,
    "getAcl": _get_acl,
}
SCRIPT = Script(
    "zookeeper-shell.sh zookeeper_host:port[/path] [-zk-tls-config-file file] [command ...]", _run
)
