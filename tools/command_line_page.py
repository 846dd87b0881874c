"""docs/command-line.md: the verbs of ``kbroker`` with their options, from their own definitions."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from unittest import mock

from kbroker.cli.arguments import Action
from kbroker.cli.command import VERBS, module_of

# Told once for all verbs.
_SHARED = {"help", "bootstrap_server", "command_config", "profile", "timeout"}
_WHICH = "#which-cluster-and-how-to-log-in-there"
_HEAD = """\
# The command line

<!-- Written by tools/gen_docs.py from kbroker/cli; change it there. -->

`kbroker` is one command with verbs, for kbroker and for any Apache Kafka from 2.7 (older ones have
fewer requests). `kbroker` alone starts a broker on `localhost:9092` with its data in
`~/.local/share/kbroker`. `kbroker VERB --help` tells about one verb.

```
kbroker topic create orders -p 3
echo 'alice:42' | kbroker produce orders -K :
kbroker consume orders --exit -f '%k bought %v\\n'
kbroker group reset billing --topic orders --to-earliest
```

## Which cluster, and how to log in there

| what | option | environment variable | otherwise |
| --- | --- | --- | --- |
| brokers | `-b`, `--bootstrap-server` | `KBROKER_BOOTSTRAP_SERVER` | `bootstrap.servers` of the \
file, or `localhost:9092` |
| settings of a client | `--command-config` | `KBROKER_COMMAND_CONFIG` | \
`~/.config/kbroker/client.properties`, if there is one |
| the same, from a [profile](#kbroker-profile) | `--profile` | `KBROKER_PROFILE` | the one that \
`kbroker profile use` has chosen |
| seconds to wait | `--timeout` | `KBROKER_TIMEOUT` | 10 |
| how to print | `-o`, `--output` | `KBROKER_OUTPUT` | `table` |

An option comes before its variable, and that before file and profile; a profile comes before
`~/.config/kbroker/client.properties`. The file has the settings of a Java
client or of librdkafka ([security.md](security.md)), for example:

```
bootstrap.servers=broker.example.org:9093
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.username=alice
sasl.password=secret
```

## Output and exit codes

`-o table` is for people and may change. `-o json` and `-o yaml` are for programs: what is unknown
or absent is `null`. Errors are one line on stderr.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | failed: a broker rejected it, or none could be reached within the timeout; the line names \
each address that was tried, and why it failed; or its output cannot be written (a full disk, a \
closed pipe) |
| 2 | wrong usage: the line names what is wrong and the nearest right option, setting or word |

## Completion

`source <(kbroker completion bash)` in `~/.bashrc` completes verbs, options, and the names of the
topics, groups, brokers and transactional ids that the brokers have; `zsh` and `fish` have scripts,
too.
"""


def command_line() -> str:
    """The text of the page; the environment of who generates it has no influence."""
    bare = {name: text for name, text in os.environ.items() if not name.startswith("KBROKER_")}
    with mock.patch.dict(os.environ, bare, clear=True):
        return "\n".join([_HEAD, *_verbs()])


def _verbs() -> Iterator[str]:
    for verb, title in VERBS.items():
        module = module_of(verb)
        yield f"## kbroker {verb}"
        yield ""
        if hasattr(module, "ACTION"):
            yield from _action(f"kbroker {verb}", module.ACTION)
        elif hasattr(module, "ACTIONS"):
            yield f"{title[:1].upper()}{title[1:]}."
            yield ""
            for name, action in module.ACTIONS.items():
                yield f"### kbroker {verb} {name}"
                yield ""
                yield from _action(f"kbroker {verb} {name}", action)
        else:
            yield f"{title[:1].upper()}{title[1:]}: [kbroker-{verb}.md](kbroker-{verb}.md)."
            yield ""


def _action(said: str, action: Action) -> Iterator[str]:
    everything = action.parser(said)._actions
    rows = [row for row in everything if row.dest not in _SHARED]
    yield f"{action.title[:1].upper()}{action.title[1:]}."
    yield ""
    if rows:
        yield "| argument | meaning |"
        yield "| --- | --- |"
        yield from (f"| {_name(row)} | {_meaning(row)} |" for row in rows)
        yield ""
    if any(row.dest == "bootstrap_server" for row in everything):
        yield f"It also takes the options that [say which cluster]({_WHICH})."
        yield ""
    if action.epilog:
        yield "```"
        yield action.epilog
        yield "```"
        yield ""


def _name(row: argparse.Action) -> str:
    metavar = row.metavar or "{" + ",".join(map(str, row.choices or ())) + "}"
    metavar = str(metavar).replace("|", "\\|")
    if not row.option_strings:
        return f"`{metavar}`" + (" ..." if row.nargs in ("+", "*") else "")
    takes = "" if row.nargs == 0 else f" {metavar}"
    return (
        ", ".join(f"`{text}`" for text in row.option_strings[:-1])
        + (", " if row.option_strings[1:] else "")
        + f"`{row.option_strings[-1]}{takes}`"
    )


def _meaning(row: argparse.Action) -> str:
    text = (row.help or "") % {"default": row.default, "prog": "kbroker"}
    text = text.replace("|", "\\|").replace("*", "\\*").replace("~", "\\~")
    return f"{text}; required" if row.required and row.option_strings else text
