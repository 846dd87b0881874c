"""``kbroker bundle``: what a report of a problem needs, in one file and without secrets."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kbroker.cli.arguments import Action, CommandFailed
from kbroker.cli.verbs.top import add_choice

if TYPE_CHECKING:
    from kbroker.cli.local.attached import AttachedBroker

_EPILOG = """\
It looks at the broker on this machine, and works while that is stuck; what cannot be had is named
in README. Passwords are hidden where settings have them, and in whatever looks like one in the log.
Names of topics, groups, clients and users, and addresses, are in it: look at it before you pass it
on."""
# BOUND: of the log, from its end; of each text of the exporter; of the files that are listed.
LOG_BYTES = 2 << 20
FILES_MAX = 5_000
BOARD_S = 2.0
JOURNAL_LINES = 10_000
ZOOKEEPER_S = 10.0
PATHS = ("/metrics", "/health", "/healthz?verbose", "/groups", "/quotas", "/waiting")
_OF_STATUS = ("State", "Threads", "VmSize", "VmRSS", "RssAnon", "RssShmem", "FDSize", "SigBlk",
              "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")  # fmt: skip


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", metavar="FILE",
        help="the archive to write (kbroker-bundle-<broker>-<time>.tar.gz)",
    )  # fmt: skip
    add_choice(parser)
    parser.add_argument(
        "--log", metavar="FILE", help="the broker's log, if it is not found where stderr leads"
    )


def _bundle(options: argparse.Namespace) -> None:
    from kbroker.cli.local.choice import chosen_broker

    broker = chosen_broker(options)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    name = f"kbroker-bundle-{broker.status['broker_id']}-{stamp}"
    path = options.file or f"{name}.tar.gz"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror}") from error
    missing = write_bundle(fd, name, broker, options.log)
    print(path)
    for line in missing:
        print(f"not in it: {line}", file=sys.stderr)


def write_bundle(fd: int, name: str, broker: AttachedBroker, log: str | None) -> list[str]:
    """Write the archive; returns what could not be had, and why."""
    import tarfile

    from kbroker.config.masking import without_secrets

    missing: list[str] = []
    with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:

        def add(member: str, make: Callable[[], str]) -> None:
            try:
                data = without_secrets(make()).encode("utf-8", "replace")
            except Exception as error:  # whatever is wrong with the broker, the rest is wanted
                missing.append(f"{member}: {error}")
                return
            info = tarfile.TarInfo(f"{name}/{member}")
            info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
            archive.addfile(info, io.BytesIO(data))

        for member, make in _members(broker, log):
            add(member, make)
        add("README", lambda: _readme(missing))
    return missing


def _members(broker: AttachedBroker, log: str | None) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "versions.json", _versions
    yield "broker.json", lambda: _document(broker.status)
    yield "board.json", lambda: _document(_board(broker))
    yield "processes.txt", lambda: _processes(broker)
    yield "log.txt", lambda: log_text(broker.pid if broker.run.sees_processes else 0, log)
    yield "directories.txt", lambda: _directories(broker)
    yield "nodes.txt", lambda: _nodes(broker)
    for path in PATHS:
        member = f"exporter{path.partition('?')[0].replace('/', '-')}.txt"
        yield member, lambda path=path: _exported(broker, path)  # type: ignore[misc]


def _readme(missing: list[str]) -> str:
    lines = ["A report of kbroker bundle. Passwords are hidden; names and addresses are not.", ""]
    return "\n".join([*lines, *(f"not in it: {line}" for line in missing), ""])


def _document(document: object) -> str:
    return json.dumps(document, indent=1) + "\n"


def _versions() -> str:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from kbroker import __version__

    packages = {}
    for name in (
        "pyzmq",
        "kazoo",
        "zstandard",
        "lz4",
        "cramjam",
        "google-crc32c",
        "cryptography",
        "posix_ipc",
        "numpy",
    ):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "-"
    return _document(
        {
            "kbroker": __version__,
            "python": sys.version,
            "platform": platform.platform(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "cores_allowed": len(os.sched_getaffinity(0)),
            "packages": packages,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
    )


def _board(broker: AttachedBroker) -> dict[str, object]:
    from kbroker.cli.local.board import board, look

    before = look(broker)
    time.sleep(BOARD_S)
    return board(broker, before, look(broker))


def _processes(broker: AttachedBroker) -> str:
    """What the kernel says of each process, and where it waits."""
    if not broker.run.sees_processes:
        raise OSError("the broker runs in another container")
    lines = []
    for address, row in broker.processes().items():
        pid = int(row["pid"])
        lines.append(f"== {address.title} {pid}")
        try:
            with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                lines += [line.rstrip() for line in file if line.startswith(_OF_STATUS)]
            for name in ("wchan", "limits", "schedstat", "io"):
                with open(f"/proc/{pid}/{name}", encoding="utf-8") as file:
                    lines.append(f"-- {name}: {file.read().rstrip()}")
        except OSError as error:
            lines.append(f"({error})")
    return "\n".join([*lines, ""])


def log_text(pid: int, given: str | None) -> str:
    """The end of the log: of the given file, of the one that stderr is, or of the journal.

    pid: 0 if it means nothing here.
    """
    if not (given or pid):
        raise OSError("the broker runs in another container; give its log with --log")
    target = given or os.readlink(f"/proc/{pid}/fd/2")
    if given or os.path.isfile(target):
        with open(target, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            return file.read(LOG_BYTES).decode("utf-8", "replace")
    if not target.startswith("socket:"):
        raise OSError(f"stderr of the broker is {target}; give its log with --log")
    import subprocess

    with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
        unit = file.read().strip().rpartition("/")[2]
    journal = subprocess.run(
        ["journalctl", "--no-pager", "-o", "cat", "-n", str(JOURNAL_LINES), "-u", unit],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return journal.stdout[-LOG_BYTES:]


def _directories(broker: AttachedBroker) -> str:
    """Space, and the files beside the logs."""
    lines = []
    for path in broker.status["log_dirs"]:
        space = os.statvfs(path)
        lines.append(
            f"== {path}: {space.f_bavail * space.f_frsize} of {space.f_blocks * space.f_frsize} "
            f"bytes free, {space.f_favail} of {space.f_files} inodes"
        )
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name)[:FILES_MAX]:
            kind = "/" if entry.is_dir(follow_symlinks=False) else ""
            size = 0 if kind else entry.stat(follow_symlinks=False).st_size
            lines.append(f"{size:>12} {entry.name}{kind}")
    return "\n".join([*lines, ""])


def _nodes(broker: AttachedBroker) -> str:
    from kbroker.metastore.node_summary import nodes_of_files, nodes_of_zookeeper, summary_text

    connect = broker.status["settings"].get("zookeeper.connect")
    if connect:
        return summary_text(nodes_of_zookeeper(connect, ZOOKEEPER_S))
    return summary_text(nodes_of_files(broker.status["log_dirs"]))


def _exported(broker: AttachedBroker, path: str) -> str:
    from kbroker.cli.local.groups import exporter_text

    text = exporter_text(broker, path, of_failure=True)
    if text is None:
        raise OSError("the exporter does not answer")
    return text


ACTION = Action("collect what a report of a problem needs, without secrets", _describe, _bundle,
                _EPILOG)  # fmt: skip
