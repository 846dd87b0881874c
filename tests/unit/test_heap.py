"""Allocating and freeing buffers causes no page faults, and garbage is collected in between."""

import gc
import os
import resource
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.running.sanitizer import measures_memory

from kbroker._ext.base.heap_holes import fill_holes
from kbroker.heap import Collector, freeze_for_children, keep_freed_memory

SIZE, COUNT = 2 << 20, 8

# CPython 3.14: it has no third threshold, and counts no rounds of an oldest generation.
collects_at_once = pytest.mark.skipif(
    gc.get_threshold()[2] == 0, reason="this CPython collects garbage in increments"
)


def page_faults_of_a_round() -> int:
    """The page faults of allocating and freeing the buffers of a task."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [bytearray(b"x") * SIZE for _ in range(COUNT)]
    assert all(buffer[-1] for buffer in buffers)
    buffers.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@measures_memory
def test_freed_memory_is_used_again() -> None:
    """With malloc's defaults each round maps all its pages again: 4,096 and more faults."""
    keep_freed_memory()
    page_faults_of_a_round()
    assert page_faults_of_a_round() < 400


KEPT_OF_THREADS = """
import threading
from pathlib import Path
from kbroker.heap import return_freed_memory
return_freed_memory()

def work():
    for size in (1 << 17, 1 << 20, 3 << 20):
        blocks = [bytearray(b"x") * size for _ in range(4)]
        blocks.clear()
    small = [bytearray(700) for _ in range(2000)]
    small.clear()
    done.release()
    ending.wait()

def private():
    text = Path("/proc/self/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if "Private_Dirty" in line)

done, ending = threading.Semaphore(0), threading.Event()
before = private()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
    done.acquire()
print(private() - before)
ending.set()
"""


@measures_memory
def test_freed_memory_of_threads_is_given_back() -> None:
    """With malloc's defaults each thread keeps a heap, and in it what it has had once."""
    text = subprocess.run(
        [sys.executable, "-c", KEPT_OF_THREADS], stdout=subprocess.PIPE, check=True, timeout=60
    ).stdout
    assert int(text) < 4096


def made(count: int) -> list[bytes]:
    """Objects of one size, 144 bytes with their headers."""
    return [bytes(111) for _ in range(count)]


def pages_of(objects: list[bytes]) -> set[int]:
    return {id(one) // resource.getpagesize() for one in objects}


@measures_memory
def test_holes_between_old_objects_are_not_given_to_new_ones() -> None:
    """A child that writes to a page gets its own copy, with everything old in it."""
    fill_holes()  # of earlier tests
    old = made(4000)
    del old[::2]
    reused = made(100)
    assert pages_of(reused) <= pages_of(old)
    del reused

    filled = fill_holes()

    assert filled >= 2000 * 144
    assert not pages_of(made(500)) & pages_of(old)


@measures_memory
def test_holes_in_what_the_c_library_has_are_filled_too() -> None:
    """Of objects above 512 bytes: dictionaries, classes, code. In a process without other holes."""
    program = (
        "from unit.test_heap import fill_holes, pages_of;"
        "old = [bytes(2000) for _ in range(1000)]; del old[::2]; filled = fill_holes();"
        "print(filled, len(pages_of([bytes(1500) for _ in range(100)]) & pages_of(old[:-4])))"
    )
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": tests}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    filled, shared = map(int, done.stdout.split())
    assert filled >= 500 * 2000
    assert shared == 0


@measures_memory
def test_allocator_that_maps_what_it_is_asked_for_costs_no_memory() -> None:
    """Every block of it is below a large one, as holes are."""
    program = (
        "from kbroker._ext.base.heap_holes import fill_holes; fill_holes();"
        "print(*[line.split()[1] for line in open('/proc/self/status') if 'VmHWM' in line])"
    )
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "4096"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 10


def test_pool_that_shows_where_the_holes_end_is_given_back() -> None:
    """Of each of 32 sizes; only the few are left that were started since the last time."""
    fill_holes()
    assert fill_holes() < 8 * 16384


def test_collection_in_a_child_leaves_alone_what_was_there_before_the_fork() -> None:
    """It stays frozen, as tests/conftest.py wants it."""
    gc.collect()  # or garbage of earlier tests would stay, with what it holds
    freeze_for_children()
    assert gc.get_freeze_count() > 10_000
    assert not any(isinstance(one, type) for one in gc.get_objects())


@pytest.fixture(autouse=True)
def own_collector() -> Iterator[None]:
    """Python's default settings of the collector, whatever earlier tests have set."""
    before, was_enabled = gc.get_threshold(), gc.isenabled()
    gc.enable()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)
    if not was_enabled:
        gc.disable()


class Looped:
    """An object in a cycle, which only the collector frees."""

    def __init__(self) -> None:
        self.me = self


@collects_at_once
def test_objects_that_live_on_are_not_gone_through_while_a_request_is_worked_on() -> None:
    """A hundred thousand objects took the collector 0.1 s, several times in one request."""
    full_collections: list[str] = []
    gc.callbacks.append(
        lambda phase, info: full_collections.append(phase) if info["generation"] == 2 else None
    )
    try:
        collector = Collector()
        gc.collect()
        full_collections.clear()
        left = weakref.ref(Looped())
        request = [[number] for number in range(200_000)]

        assert full_collections == []
        assert not collector.maybe_collect(is_quiet=False, now_ms=0)
        assert collector.maybe_collect(is_quiet=True, now_ms=1)
        assert left() is None
        assert len(request) == 200_000
    finally:
        gc.callbacks.pop()


@collects_at_once
def test_garbage_is_collected_in_the_end_where_it_is_never_quiet() -> None:
    collector = Collector()
    gc.collect()
    objects = [[number] for number in range(200_000)]
    assert gc.get_count()[2] >= 10, f"{len(objects)} objects are more than ten rounds"

    collected = [collector.maybe_collect(False, now_ms) for now_ms in (0, 29_999, 30_000)]

    assert collected == [False, False, True]


def test_old_garbage_goes_in_the_end_in_whatever_way_this_python_collects() -> None:
    """At once by the collector between requests, or in CPython's own increments."""
    collector = Collector()
    old = Looped()
    gc.collect()
    left = weakref.ref(old)
    del old

    for now_ms in range(100):
        assert len([[number] for number in range(20_000)]) == 20_000
        collector.maybe_collect(is_quiet=True, now_ms=now_ms)
        if left() is None:
            break

    assert left() is None
