"""A PostgreSQL server for tests, if one is installed on the machine."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perf.brokers import free_ports


def _program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of an empty server; skips the test if there is none.

    The server refuses to run as root: then it runs as the user ``postgres``.
    """
    pytest.importorskip("psycopg")
    initdb, server = _program("initdb"), _program("postgres")
    if initdb is None or server is None:
        pytest.skip("PostgreSQL is not installed")
    options: dict[str, object] = {}
    folder = Path(tempfile.mkdtemp(prefix="kbroker-pg-"))
    if os.geteuid() == 0:
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL is not installed for its user postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    (port,) = free_ports(1)
    data = folder / "data"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    # What ``make sanitize`` loads is not for the programs of others.
    options["env"] = {name: text for name, text in os.environ.items() if name != "LD_PRELOAD"}
    process = None
    try:
        made = [initdb, "-D", str(data), "-U", "load", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(made, check=True, **quiet, **options)  # type: ignore[call-overload]
        command = [server, "-D", str(data), "-p", str(port), "-k", str(folder), "-h", "127.0.0.1"]
        process = subprocess.Popen(command, **quiet, **options)  # type: ignore[call-overload]
        url = f"postgresql://load@127.0.0.1:{port}/postgres"
        _wait_for(url)
        yield url
    finally:
        if process is not None:
            process.terminate()
            process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(url: str) -> None:
    import psycopg

    from kbroker.testing import wait_until

    def answers() -> bool:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return False
        return True

    wait_until(answers, timeout=30)
