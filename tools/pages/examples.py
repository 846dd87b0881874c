"""Examples on pages are accepted: commands by the parsers of their programs, settings by the
tables, Python by the compiler and by what can be imported, addresses by the operations of the API.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from tools.pages.text import Block, Page

# Blocks in these languages are commands; in one without a language, lines that begin with ours are.
_SHELLS = ("", "sh", "console")
_SETTING = re.compile(r"^#?([a-z][a-z0-9_-]*(?:\.[a-zA-Z0-9_-]+)+|port|listeners)=(.*)$")
_API = re.compile(r"http://127\.0\.0\.1:9644/api/v1(/[^\s'\"?]*)")
_ENDS = re.compile(r"(?<!\\)(?:\||;|&&|&|>|<|\(|\))")
_ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")
# What stands for values that the reader has.
_PLACEHOLDERS = ("...", "…")


class Rejected(Exception):
    """The parser of the program does not accept the words."""


def findings(page: Page) -> Iterator[str]:
    """Examples of a page that are not accepted."""
    for block in page.blocks:
        if block.language == "python":
            yield from _python(page, block)
        elif block.language in _SHELLS:
            yield from _shell(page, block)


# -- commands


def _shell(page: Page, block: Block) -> Iterator[str]:
    for line, text in _logical_lines(block):
        setting = _SETTING.match(text)
        if setting and not is_setting(setting[1]):
            yield page.at(line, f"no table has the setting {setting[1]}")
        for path in _API.findall(text):
            if not is_api_path(path):
                yield page.at(line, f"no operation of the API has the path {path}")
        if any(sign in text for sign in _PLACEHOLDERS):
            continue
        for words in commands(text):
            try:
                check_command(words)
            except Rejected as error:
                yield page.at(line, f"{shlex.join(words)}: {error}")


def _logical_lines(block: Block) -> Iterator[tuple[int, str]]:
    """Lines of a block, continued ones as one, without prompts and comments."""
    begun, first = "", block.line
    for number, line in enumerate(block.text.splitlines(), block.line):
        first = first if begun else number
        begun += line.strip().removesuffix("\\")
        if line.endswith("\\"):
            continue
        text = begun.removeprefix("$ ")
        yield first, re.sub(r"\s#\s.*$", "", re.sub(r"\s{2,}[a-z].*$", "", text))
        begun = ""


def commands(line: str) -> Iterator[list[str]]:
    """The commands of ours in a line of a shell, each as its words."""
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>()")
        lexer.whitespace_split = True
        lexer.commenters = ""
        words = list(lexer)
    except ValueError:  # a quotation that ends in a later line
        return
    found: list[str] = []
    for word in [*words, ";"]:
        if re.fullmatch(r"[|;&<>()]+", word):
            while found and _ASSIGNMENT.fullmatch(found[0]):
                found.pop(0)
            if found and program(found[0]):
                yield found
            # What follows a redirection is a file.
            found = [""] if word[0] in "<>" else []
        else:
            found.append(word)


def program(word: str) -> str:
    """The name of a program of ours, empty for others."""
    name = word.rpartition("/")[2].removesuffix(".sh")
    return name if name == "kbroker" or name in _PARSERS or _kafka_tool(name) else ""


def check_command(words: Sequence[str]) -> None:
    """Raises Rejected if the parser of the program does."""
    name, rest = program(words[0]), list(words[1:])
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(said):
        try:
            if name == "kbroker":
                _check_verb(rest)
            elif name in _PARSERS:
                _PARSERS[name](rest)
            else:
                _check_kafka_tool(name, rest)
        except SystemExit as error:
            if error.code:
                lines = said.getvalue().strip().splitlines()
                raise Rejected(lines[-1] if lines else f"exit code {error.code}") from None


def _check_verb(words: list[str]) -> None:
    from kbroker.cli.arguments import Usage
    from kbroker.cli.command import VERBS, module_of

    if not words or words[0].startswith("-") or "--help" in words:
        return
    verb, *rest = words
    if verb not in VERBS:
        raise Rejected(f"there is no verb {verb}")
    module = module_of(verb)
    action = getattr(module, "ACTION", None)
    if action is None and hasattr(module, "ACTIONS"):
        if not rest or rest[0] not in module.ACTIONS:
            raise Rejected(f"kbroker {verb} has no such action")
        action, rest = module.ACTIONS[rest[0]], rest[1:]
    try:
        if action is not None:
            action.parser("").parse_all(rest)
    except Usage as error:
        raise Rejected(str(error)) from None


def _kafka_tool(name: str) -> object:
    from kbroker.cli.kafka.table import TOOLS

    entry = TOOLS.get(name)
    if entry is None:
        return None
    return entry.load()


def _check_kafka_tool(name: str, words: list[str]) -> None:
    from kbroker.cli.kafka.options import HELP, VERSION, Given, ToolOptionError, WrongUse
    from kbroker.cli.kafka.parsers import ParsedTool
    from kbroker.cli.kafka.running import Tool

    tool = _kafka_tool(name)
    try:
        if isinstance(tool, Tool):
            Given([*tool.options, HELP, VERSION], words)
        elif isinstance(tool, ParsedTool):
            tool.build().parse_args(words)
    except (ToolOptionError, WrongUse) as error:
        raise Rejected(str(error)) from None


def _parsed(module: str, name: str, *arguments: str) -> Callable[[list[str]], object]:
    """What parses words with the parser that a function of a module makes."""

    def parse(words: list[str]) -> object:
        make = getattr(importlib.import_module(module), name)
        parser: argparse.ArgumentParser = make(*arguments)
        return parser.parse_args(words)

    return parse


def _supervisor(words: list[str]) -> object:
    from kbroker.cli.start import parse_arguments

    return parse_arguments(words)


_PARSERS: dict[str, Callable[[list[str]], object]] = {
    "kbroker-adopt": _parsed("kbroker.cli.adopt", "_parser"),
    "kbroker-audit": _parsed("kbroker.spark.audit.cli", "build_parser"),
    "kbroker-load": _parsed("kbroker.spark.load.arguments", "build_parser", ""),
    "kbroker-log": _parsed("kbroker.cli.log", "_parser", "kbroker-log"),
    "kbroker-spark-mirror": _parsed("kbroker.spark.mirror.cli", "build_parser"),
    "kbroker-supervisor": _supervisor,
}


# -- settings and addresses


def is_setting(name: str) -> bool:
    """Whether a table of a broker, of its topics, of ZooKeeper or of a client has it."""
    from kbroker.config.broker_keys import find_key
    from kbroker.config.topic_keys import TOPIC_KEYS
    from tools.gen_docs import CLIENT_SETTINGS

    return find_key(name) is not None or name in TOPIC_KEYS or name in CLIENT_SETTINGS


def is_api_path(path: str) -> bool:
    """Whether an operation of the API has this path, with values for its parameters."""
    from kbroker.console.operations import OPERATIONS

    patterns = [re.sub(r"{\w+}", "[^/]+", each.path) for each in OPERATIONS]
    return path == "/openapi.json" or any(re.fullmatch(each, path) for each in patterns)


# -- Python


def _python(page: Page, block: Block) -> Iterator[str]:
    try:
        tree = ast.parse(block.text)
    except SyntaxError as error:
        yield page.at(block.line + (error.lineno or 1) - 1, f"no Python: {error.msg}")
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kbroker"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    line = block.line + node.lineno - 1
                    yield page.at(line, f"{node.module} has no {alias.name}")
