"""Buffers that come and go are not paid for in page faults."""

import resource

from kbroker.heap import keep_freed_memory

SIZE, COUNT = 2 << 20, 8


def page_faults_of_a_round() -> int:
    """Of taking and freeing the buffers of a task."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [bytearray(b"x") * SIZE for _ in range(COUNT)]
    assert all(buffer[-1] for buffer in buffers)
    buffers.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_freed_memory_is_used_again() -> None:
    """With malloc's defaults each round takes all its pages anew: 4,096 and more faults."""
    keep_freed_memory()
    page_faults_of_a_round()
    assert page_faults_of_a_round() < 400
