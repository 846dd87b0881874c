"""CPU and memory of a process tree, read for this test's own."""

import os
import subprocess
import threading

import pytest

from perf import process_tree

pytestmark = pytest.mark.unit


def write_stat(proc, pid, parent, name="worker", ticks=(0, 0, 0, 0)):
    (proc / str(pid)).mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 9, *map(str, ticks), "20", "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")


@pytest.fixture
def proc(tmp_path, monkeypatch):
    monkeypatch.setattr(process_tree, "PROC", tmp_path)
    return tmp_path


def test_descendants_are_the_whole_tree_and_nothing_else(proc):
    for pid, parent in [(1, 0), (10, 1), (11, 10), (12, 11), (20, 1)]:
        write_stat(proc, pid, parent, name="a (b) c")

    assert sorted(process_tree.descendants(10)) == [10, 11, 12]


def test_cpu_seconds_adds_own_and_reaped_time_of_every_process(proc):
    write_stat(proc, 10, 1, ticks=(1, 2, 4, 8))
    write_stat(proc, 11, 10, ticks=(16, 32, 0, 0))
    write_stat(proc, 12, 1, ticks=(1000, 0, 0, 0))

    assert process_tree.cpu_seconds(10) == pytest.approx(63 / process_tree.TICKS_PER_SECOND)


def test_pss_bytes_adds_the_pss_lines_alone(proc):
    for pid, parent in [(10, 1), (11, 10)]:
        write_stat(proc, pid, parent)
        (proc / str(pid) / "smaps_rollup").write_text("Rss: 900 kB\nPss: 5 kB\nPss_Anon: 4 kB\n")

    assert process_tree.pss_bytes(10) == 10 * 1024


def test_own_process_has_memory_and_is_in_its_own_tree():
    assert process_tree.pss_bytes(os.getpid()) > 1 << 20
    assert os.getpid() in process_tree.descendants(os.getpid())


def test_processes_are_kept_to_cores_for_a_while_with_all_their_threads():
    all_cores = os.sched_getaffinity(0)
    first = {min(all_cores)}
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        tasks = [os.getpid(), thread.native_id, other.pid]
        with process_tree.kept_to(first, [os.getpid(), other.pid, 2**22 + 1]):
            assert [os.sched_getaffinity(task) for task in tasks] == [first] * 3
        assert [os.sched_getaffinity(task) for task in tasks] == [all_cores] * 3
        assert other.stdin is not None
        other.stdin.close()
    done.set()
    thread.join()
