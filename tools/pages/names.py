"""Whatever a page names in a code span exists: files, classes, settings, metrics, options.

A name exists if it is a path of the repository, an attribute that can be imported, or a word of
the sources. What belongs to other programs, or stands for the reader's own, is in ``OTHERS``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from tools.pages.text import Page

# Names of other programs and of the reader's, which no source of kbroker has.
OTHERS = {
    "KillMode",  # systemd
    "tcp_available_ulp",  # Linux
    "has_journal",  # mke2fs
    "delta_scan",  # DuckDB
    "StreamingQueryProgress",  # Spark
    "--py-files",  # spark-submit
    "--find-links",  # pip
    "--no-index",
    "--no-deps",
    "--build-arg",  # podman
    "with_kraft",  # testcontainers
    "my_module",
    "my_module.Prefixed",
    "net.ipv4.tcp_wmem",
    "net.core.wmem_max",
    "ssl.OP_ENABLE_KTLS",  # Python, from 3.12 on
    "--no-progress",  # Kafka
    "copy_folio_from_iter_atomic",
    "sys_enter_",  # perf trace
    "user_broker",
    "metrics_path",  # Prometheus
    "zk.example",
    "kbroker.topic",  # a metadata column that a reader chooses
    "kbroker.commit.LOAD",  # a property of an Iceberg table, with the name of a load
    # Names that a family of metrics derives from Java's.
    "kafka_consumer_consumer_fetch_manager_metrics_records_lag_max",
    "__share_group_state",  # a topic of Kafka 4
}
_FOLDERS = ("kbroker", "ext", "perf", "tools", "tests", "pyspark_kbroker", "config")
_ENDINGS = ("py", "pyx", "pxd", "pyi", "h", "js", "java", "go", "properties", "service")
_FILES = ("pyproject.toml", "setup.py", "Makefile", ".ci/run")
# Where a path on a page may start, and which suffix it may lack.
_STARTS = ("", "kbroker", "ext/kbroker", "ext/kbroker/_ext", "docs", "perf")
_PATH_ENDINGS = ("", ".py", ".pyx")
# Pages on the code, whose words with a slash are paths.
_OF_CODE = re.compile(r"docs/(architecture|extending|decisions)|CONTRIBUTING")
_OUR_FOLDERS = ("kbroker/", "ext/", "docs/", "perf/", "tests/", "tools/", "config/", "bin/")

_PATH = re.compile(r"[\w.-]+(?:/[\w.*-]+)+/?")
_FILE = re.compile(r"(?<![\w./<>*-])[\w-]+\.(?:py|pyx|pxd|pyi|md)(?![\w])")
_WORD = re.compile(r"(?<![\w./-])(?:[A-Z]\w*[a-z]\w*[A-Z]\w*|[a-z_]\w*_\w+)(?![\w/-])")
_DOTTED = re.compile(r"(?<![\w./-])[a-z][a-z0-9_]*(?:\.[A-Za-z0-9_]+)+(?![\w(/.-])")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9.-]*[a-z0-9]")
# Settings of Spark's source are those of clients behind this.
_SPARK = "kafka."


class Known:
    """What there is in a checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def sources(self) -> str:
        """All sources but the tests of these checks."""
        paths = [
            path
            for folder in _FOLDERS
            for ending in _ENDINGS
            for path in (self.root / folder).rglob(f"*.{ending}")
            if "/tools/" not in path.as_posix().removeprefix(self.root.as_posix())
        ]
        paths += [self.root / name for name in _FILES]
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)

    @cached_property
    def dotted(self) -> set[str]:
        """Runs of words, dots and dashes in the sources: settings, options, names of files."""
        return {found.strip(".") for found in re.findall(r"[\w.-]+", self.sources)}

    @cached_property
    def quoted(self) -> set[str]:
        """Words in quotation marks: how options of Kafka's tools are written in their tables."""
        return set(re.findall(r'"([a-z][\w.-]*)"', self.sources))

    @cached_property
    def words(self) -> set[str]:
        """The words of the sources, and the names of their modules."""
        modules = {path.stem for folder in _FOLDERS for path in (self.root / folder).rglob("*.py*")}
        return modules | set(re.findall(r"\w+", self.sources))

    @cached_property
    def files(self) -> set[str]:
        """The names of all files."""
        folders = (*_FOLDERS, "docs", "bin")
        return {path.name for path in self.root.iterdir()} | {
            path.name for folder in folders for path in (self.root / folder).rglob("*.*")
        }

    def is_path(self, path: str) -> bool:
        """Whether there is such a file or folder, perhaps without its suffix."""
        return any(
            any(self.root.glob(f"{start}/{path}{ending}".lstrip("/")))
            for start in _STARTS
            for ending in _PATH_ENDINGS
        )

    def is_attribute(self, dotted: str) -> bool:
        """Whether it can be imported from kbroker, a class's method included."""
        parts = dotted.split(".")
        for at in range(len(parts), 0, -1):
            try:
                found: object = importlib.import_module(".".join(parts[:at]))
            except ImportError:
                continue
            for name in parts[at:]:
                found = getattr(found, name, None)
            return found is not None
        return False

    def is_path_of_attribute(self, text: str) -> bool:
        """``handlers/registry.HOT_RANGES``: a name in a module."""
        path, _, name = text.rpartition(".")
        return bool(path) and name not in _ENDINGS and self.is_path(path) and name in self.words

    def is_dotted(self, name: str) -> bool:
        """Whether it is a setting, a file, or a name in a module or a class."""
        if name in self.dotted or name in self.files:
            return True
        if name.startswith(_SPARK) and name.removeprefix(_SPARK) in self.dotted:
            return True
        first, _, rest = name.partition(".")
        if first == "kbroker":
            return self.is_attribute(name)
        if first == "listener":  # of one listener: a setting of the broker with a prefix
            return any(rest.endswith(f".{key}") for key in self.settings)
        return first in self.words and all(part in self.words for part in rest.split("."))

    @cached_property
    def settings(self) -> set[str]:
        """The settings of the broker."""
        from kbroker.config.broker_keys import BROKER_KEYS

        return set(BROKER_KEYS)


def findings(page: Page, known: Known) -> Iterator[str]:
    """Names in the code spans of a page that do not exist."""
    for span, line in page.spans():
        for name in unknown(page.name, span, known):
            yield page.at(line, f"there is no {name}")


def unknown(page: str, span: str, known: Known) -> Iterator[str]:
    """The names in a code span that do not exist."""
    if span in OTHERS:
        return
    path = span.removesuffix("/")
    if _PATH.fullmatch(span) and (_OF_CODE.match(page) or span.startswith(_OUR_FOLDERS)):
        if not known.is_path(path) and not known.is_path_of_attribute(path):
            yield span
        return
    for name in _FILE.findall(span):
        if name not in known.files and name not in known.dotted:
            yield name
    for pattern, exists in (
        (_WORD, known.words.__contains__),
        (_DOTTED, known.is_dotted),
        (_OPTION, lambda text: text in known.dotted or text[2:] in known.quoted),
    ):
        for name in pattern.findall(span):
            if name not in OTHERS and not _FILE.fullmatch(name) and not exists(name):
                yield name
