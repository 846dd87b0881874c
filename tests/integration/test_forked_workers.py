"""Test processes that are forks of one which has collected (``tests/support/running``)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.testing import wait_until

TESTS = Path(__file__).parents[1]
PASSING = """
import os, random, time
from pathlib import Path

HERE = Path(__file__).parent
with open(HERE / "imports", "a") as imports:
    imports.write("x")

def test_writes(tmp_path, worker_id, testrun_uid):
    print("said by", worker_id)
    (HERE / f"seen-{worker_id}").write_text(
        f"{os.getpid()} {random.random()} {tmp_path} {os.environ['PYTEST_XDIST_WORKER']}"
    )
    while len(list(HERE.glob("seen-*"))) < 2:  # xdist gives each process two tests to begin with
        time.sleep(0.05)

def test_passes(): pass
"""
OTHERS = {
    "fails": 'def test_fails(worker_id):\n    print("cause:", worker_id)\n    assert 1 == 2\n',
    "dies": "import os\ndef test_dies():\n    os.kill(os.getpid(), 9)\ndef test_next(): pass\n",
    "cannot_be_read": "import nothing_of_this_name\n",
}


def run(folder: Path, *arguments: str, processes: int = 2) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-rf"),
        *("-p", "support.running.forked_workers", "-c", os.devnull, "--rootdir", str(folder)),
        *("-p", "no:cacheprovider", "-n", str(processes), *arguments, str(folder)),
    ]


def environment() -> dict[str, str]:
    """Without what this test process has from its own controller, and without other plugins."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    return kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(TESTS)}


def output(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code, and what pytest has printed."""
    done = subprocess.run(
        run(folder, *arguments),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=110,
    )
    return done.returncode, done.stdout + done.stderr


def test_workers_collect_once_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    """They are processes of their own, with directories, random numbers and names of their own.
    One that dies fails its test, and another fork runs those that it would have run.
    """
    for name in ("a_first", "a_second"):
        (tmp_path / f"test_{name}.py").write_text(PASSING)
    for name in ("fails", "dies"):
        (tmp_path / f"test_{name}.py").write_text(OTHERS[name])

    code, text = output(tmp_path)

    assert code == pytest.ExitCode.TESTS_FAILED, text
    assert (tmp_path / "imports").read_text() == "xx"
    seen = {path.name: path.read_text().split() for path in tmp_path.glob("seen-*")}
    assert [len(set(column)) for column in zip(*seen.values(), strict=True)] == [2, 2, 2, 2]
    for name, (_, _, directory, worker) in seen.items():
        assert (f"/popen-{worker}/" in directory, name) == (True, f"seen-{worker}")
    assert "crashed while running 'test_dies.py::test_dies'" in text
    assert text.count("cause: gw") == 1  # a failed test's output, and no other's
    assert "said by" not in text
    assert "FAILED test_fails.py::test_fails - assert 1 == 2" in text
    assert "2 failed, 5 passed" in text


@pytest.mark.slow
def test_the_first_failure_ends_a_run_that_shall_end_there(tmp_path: Path) -> None:
    (tmp_path / "test_fails.py").write_text(OTHERS["fails"] + "def test_next(): pass\n")

    code, text = output(tmp_path, "-x")

    assert code == pytest.ExitCode.INTERRUPTED
    assert "stopping after 1 failures" in text


@pytest.mark.slow
def test_what_cannot_be_collected_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_cannot_be_read.py").write_text(OTHERS["cannot_be_read"])

    code, text = output(tmp_path)

    assert code == pytest.ExitCode.TESTS_FAILED
    assert "No module named 'nothing_of_this_name'" in text
    assert "1 error" in text


@pytest.mark.slow
def test_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    code, text = output(tmp_path, "no_such_file.py")

    assert code != pytest.ExitCode.OK
    assert "ERROR: file or directory not found" in text
    assert "INTERNALERROR" not in text


@pytest.mark.slow
def test_worker_whose_end_takes_long_ends_in_silence(tmp_path: Path) -> None:
    """execnet interrupts it after five seconds."""
    (tmp_path / "test_passes.py").write_text("def test_passes(): pass\n")
    (tmp_path / "conftest.py").write_text(
        "import os, signal\n"
        "def pytest_configure(config):\n"
        "    config.add_cleanup(interrupt)\n"
        "def interrupt():\n"
        "    if 'PYTEST_XDIST_WORKER' in os.environ:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
    )

    code, text = output(tmp_path)

    assert code == pytest.ExitCode.OK
    assert "KeyboardInterrupt" not in text


@pytest.mark.slow
def test_a_collector_that_fails_or_dies_fails_the_run(tmp_path: Path) -> None:
    """Instead of a run without end, or one without tests that passes."""
    (tmp_path / "test_passes.py").write_text("def test_passes(): pass\n")
    for what in ("raise RuntimeError('no collection')", "import os; os._exit(5)"):
        hook = f"def pytest_collection_finish(session):\n    {what}\n"
        (tmp_path / "conftest.py").write_text(hook)

        code, text = output(tmp_path)

        assert code == pytest.ExitCode.INTERNAL_ERROR, text
        assert "no collection" in text or "_exit" in what


def test_processes_end_with_their_controller(tmp_path: Path) -> None:
    """A run that was killed leaves no process behind: worker, relay, collector."""
    (tmp_path / "test_waits.py").write_text(
        "import os, pathlib, time\ndef test_waits():\n"
        "    written = pathlib.Path(__file__).with_name('pids')\n"
        "    written.with_suffix('.new').write_text(f'{os.getpid()} {os.getppid()}')\n"
        "    written.with_suffix('.new').rename(written)\n"
        "    time.sleep(600)\n"
    )
    command = run(tmp_path, processes=1)
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL) as controller:
        wait_until((tmp_path / "pids").exists, 100)
        children = Path(f"/proc/{controller.pid}/task/{controller.pid}/children").read_text()
        controller.send_signal(signal.SIGKILL)
    pids = {*(tmp_path / "pids").read_text().split(), *children.split()}

    assert len(pids) == 3
    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids), 100)
