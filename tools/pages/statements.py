"""What pages say about the state of kbroker: what is built, what is not, and what was measured.

A sentence with a word of ``STATE`` is a claim that a later change makes untrue without touching the
page. So each has a row in ``STATEMENTS``: the words of the page and a function that checks them
against the code, the tables or the results of measurements. Sentences without a row are findings;
a row whose words are on no page any more is one, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.config.broker_keys import BROKER_KEYS, SECTIONS
from kbroker.config.group_config import GROUP_KEYS
from kbroker.config.key import LATER, Key
from kbroker.config.topic_keys import TOPIC_KEYS
from kbroker.handlers import dispatch  # noqa: F401  all handlers, for what is announced
from kbroker.handlers.registry import announced
from kbroker.protocol.api import ApiKey
from perf.results_pages import area_of, unexplained
from perf.results_table import newest_rows
from tools.cython_style import LAYERS
from tools.pages.text import Page

ROOT = Path(__file__).resolve().parents[2]
STATE = re.compile(
    r"\b(?:so far (?:all|no|only|there)|not (?:yet )?(?:built|supported|implemented)\b|"
    r"not written yet|(?:is|are) (?:not )?built\b|until (?:that|it|this) is built|today(?!')|"
    r"for the time being|currently|no encryption|nobody is throttled|"
    r"(?:cannot|does not|do not) (?:do|work|have) yet)",
    re.I,
)
_STOPS = (". ", ".\n", "|", "\n\n", "\n- ")
# Sentences with a word of STATE that are no claims about kbroker.
HARMLESS = (
    "a checkout whose extensions are built",
    "## What is built",
    "How kbroker is built",
    "the setting does what it says. *later*",
    "but its feature is not built yet",  # what the word means that marks such a setting
    "[What is built](#what-is-built)",
)
# Its table says what resists a change: each row that is not inviting has a statement.
_CHANGES = "docs/extending.md"
_MISSED_BARS = "perf/notes/missed-bars.md"


class Statement(NamedTuple):
    """page: its name, or ``settings`` for the texts of the tables of settings. words: as they are
    there. holds: whether they are true.
    """

    page: str
    words: str
    holds: Callable[[], bool]


# -- what there is


def is_later(name: str) -> bool:
    """Whether the feature of a setting is not built."""
    key = BROKER_KEYS.get(name) or TOPIC_KEYS[name]
    return key.status == LATER


def is_unserved(*apis: ApiKey) -> bool:
    """Whether no broker serves any of these requests."""
    served = {key for key, _, _ in announced()}
    return served.isdisjoint(apis)


def not_served() -> set[str]:
    """The requests that are not served, without those that the following features need."""
    served = {key for key, _, _ in announced()}
    served.add(ApiKey.PEER_STATUS)  # to kbrokers alone
    return {api.name for api in ApiKey if api not in served}


_KRAFT = {"ENVELOPE", "BROKER_REGISTRATION", "BROKER_HEARTBEAT", "ALLOCATE_PRODUCER_IDS"}


def only_these_are_missing() -> bool:
    """Each request that is not served, and each section of settings that has no effect yet, belongs
    to share groups, streams groups, tiered storage or KRaft.
    """
    missing = {name for name in not_served() if "SHARE" not in name and "STREAMS" not in name}
    later = {title for title, keys in SECTIONS if all(key.status == LATER for key in keys)}
    return missing <= _KRAFT and later <= {"Share groups", "Tiered storage"}


def has(path: str, *words: str) -> bool:
    """Whether a file of the repository has all these words."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return all(each in text for each in words)


# -- what was measured


@cache
def _results(folder: str) -> dict[tuple[str, str], float]:
    """(cell, figure) -> kbroker's newest figure."""
    found: dict[tuple[str, str], float] = {}
    files = [json.loads(path.read_text("utf-8")) for path in (ROOT / folder).glob("*.json")]
    for report in sorted(files, key=lambda each: str(each["date"])):
        cells: dict[str, Any] = report["cells"]
        for name, cell in cells.items():
            for row in cell["conditions"]:
                if row["met"] is not None:
                    found[name, row["text"]] = row["kbroker"]
    return found


def measured(cell: str, figure: str, about: float, folder: str) -> bool:
    """Whether the newest figure is this one, give or take a quarter."""
    return abs(_results(folder)[cell, figure] - about) <= about / 4


def first_row(cell: str, figure: str, about: float) -> bool:
    """The same for a cell of one broker beside Kafka."""
    rows = (row for row in newest_rows() if row.name == cell and row.figure == figure)
    return any(abs(float(row.ours) - about) <= about / 20 for row in rows)


def is_ratio(cell: str, figure: str, about: float) -> bool:
    """Whether the newest ratio to Kafka of such a cell is this one, give or take a tenth."""
    rows = (row for row in newest_rows() if row.name == cell and row.figure == figure)
    return any(row.ratio is not None and abs(row.ratio - about) <= about / 10 for row in rows)


def client_ratios(other: str) -> list[float]:
    """How much faster kbroker's clients are than another library, in each figure with both."""
    rows = [row for row in newest_rows() if area_of(row) == "clients in Python"]
    return [row.ratio for row in rows if other in row.theirs and row.ratio is not None]


_CLUSTER = "perf/results/cluster"
_EXT = "ext/kbroker/_ext"

STATEMENTS: tuple[Statement, ...] = (
    Statement(
        "README.md",
        "Not built: share groups (KIP-932), streams groups (KIP-1071), tiered storage (KIP-405), "
        "and a KRaft quorum",
        lambda: (
            only_these_are_missing()
            and is_unserved(ApiKey.SHARE_FETCH, ApiKey.STREAMS_GROUP_HEARTBEAT)
            and is_unserved(ApiKey.BROKER_REGISTRATION)
            and is_later("remote.log.storage.system.enable")
        ),
    ),
    Statement(
        "README.md",
        "is there in a sixth of the time that Kafka needs",
        lambda: is_ratio("start", "s", 1 / 6),
    ),
    Statement("README.md", "takes 71 MiB when idle", lambda: first_row("memory", "MiB", 71)),
    Statement("README.md", "a fifth of Kafka's memory", lambda: is_ratio("memory", "MiB", 1 / 5)),
    Statement(
        "README.md",
        "clients for Python](docs/clients.md) that are faster than confluent-kafka",
        lambda: all(ratio > 1 for ratio in client_ratios("confluent")),
    ),
    Statement(
        "docs/cluster.md",
        "0.2 s for an io worker",
        lambda: measured("failover", "io worker, s", 0.2, _CLUSTER),
    ),
    Statement(
        "docs/cluster.md",
        "before it stops (controlled shutdown) | 0.3 s |",
        lambda: measured("shutdown", "longest wait of a produce, ms", 300, _CLUSTER),
    ),
    Statement(
        "docs/cluster.md",
        "closes the session, and another in-sync replica leads | 0.1 s |",
        lambda: measured("failover", "supervisor, s", 0.1, _CLUSTER),
    ),
    Statement(
        "settings",
        "share and streams are not built",
        lambda: is_unserved(ApiKey.SHARE_FETCH, ApiKey.STREAMS_GROUP_HEARTBEAT),
    ),
    Statement(
        "settings", "Rejected until that is built", lambda: is_later("remote.storage.enable")
    ),
    Statement(
        "docs/architecture/file-map.md",
        "`base`, `shared` (memory between processes), "
        + ", ".join(f"`{folder}`" for folder in LAYERS[2:]),
        lambda: True,  # the words are made of the layers that are checked
    ),
    Statement(
        _CHANGES,
        "the first version and the first with a throttle time stand in the route",
        lambda: has(f"{_EXT}/network/express_path.pyx", "int first_version", "int first_throttled"),
    ),
    Statement(
        _CHANGES,
        "versions are told in two places; a test compares them",
        lambda: has("kbroker/handlers/registry.py", "HOT_RANGES = {"),
    ),
    Statement(
        _CHANGES,
        "`send_file` is the only place",
        lambda: has(f"{_EXT}/sockets/transport.pyx", "send_file"),
    ),
    Statement(
        _CHANGES,
        "a handler returns bytes, and only Fetch sends ranges of files",
        lambda: (
            is_unserved(ApiKey.SHARE_FETCH)
            and has("kbroker/handlers/registry.py", "Message | bytes | None]]")
        ),
    ),
    Statement(
        _CHANGES,
        "a slot has one log start offset",
        lambda: (
            is_later("remote.log.storage.system.enable")
            and not has("kbroker/ipc/layouts.py", "local_start")
        ),
    ),
    Statement(
        _CHANGES,
        "all but roles comes from nodes of the store",
        lambda: (
            is_unserved(ApiKey.BROKER_REGISTRATION)
            and has("kbroker/controller/configs/stored_configs.py", "kbroker.metastore")
        ),
    ),
    Statement(
        _CHANGES,
        "what a controller decides is a list of writes to nodes",
        lambda: has("kbroker/controller/state/decisions.py", "writes"),
    ),
)


def findings(pages: Sequence[Page]) -> Iterator[str]:
    """Rows of STATEMENTS that do not hold, or whose words no page has."""
    texts = {page.name: _joined(page.text) for page in pages} | {"settings": _settings_text()}
    for row in STATEMENTS:
        if row.words not in texts.get(row.page, ""):
            yield f"{row.page}:1: does not say {row.words!r}: take it out of STATEMENTS"
        elif not row.holds():
            yield f"{row.page}:1: {row.words!r} is not so"


def unknown_statements(page: Page) -> Iterator[str]:
    """Sentences about the state of kbroker that nothing checks."""
    if page.name == _MISSED_BARS:
        yield from (page.at(1, what) for what in unexplained(page.text))
    if page.name.startswith(("docs/decisions/", "perf/notes/")):
        return  # right for their day
    if page.name == "docs/configuration.md":
        yield from _of_settings()
        return
    if page.name == _CHANGES:
        yield from _resistance(page)
    for offset, sentence in stated(page.prose):
        if not _is_known(page.name, sentence):
            yield page.at(page.line(offset), f"nothing checks this statement: {sentence!r}")


def _of_settings() -> Iterator[str]:
    """The same in the texts of settings, whose state is a column of its own."""
    for key in _all_keys():
        for _, sentence in stated(f"{key.doc} {key.deviation}"):
            if not _is_known("settings", sentence):
                yield f"{key.name}: nothing checks this statement: {sentence!r}"


def _resistance(page: Page) -> Iterator[str]:
    """Rows of the table of changes that say of something that it resists, or is neutral."""
    for found in re.finditer(r"^\| (.*?) \| [-0] \| .* \| (.*) \|$", page.text, re.M):
        if not _is_known(page.name, found[2]):
            yield page.at(page.line(found.start()), f"nothing checks what resists: {found[1]}")


def stated(text: str) -> Iterator[tuple[int, str]]:
    """Sentences with a word of STATE, in one line, each with the offset of the word."""
    for found in STATE.finditer(text):
        begin = max(text.rfind(sign, 0, found.start()) for sign in _STOPS)
        ends = [text.find(sign, found.end()) for sign in _STOPS]
        end = min((each for each in ends if each >= 0), default=len(text))
        yield found.start(), _joined(text[begin + 1 : end]).strip(" .")


def _is_known(page: str, sentence: str) -> bool:
    return any(words in sentence for words in HARMLESS) or any(
        row.page == page and (row.words in sentence or sentence in row.words) for row in STATEMENTS
    )


def _all_keys() -> list[Key]:
    return [*BROKER_KEYS.values(), *TOPIC_KEYS.values(), *GROUP_KEYS.values()]


def _settings_text() -> str:
    return _joined("\n".join(f"{key.doc} {key.deviation}" for key in _all_keys()))


def _joined(text: str) -> str:
    """With one space for each white space, also behind the # of a comment."""
    return re.sub(r"\s+(?:# )?", " ", text)
