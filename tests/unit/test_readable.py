"""Waiting for descriptors, whatever their numbers."""

from __future__ import annotations

import os
import resource

import pytest

from kbroker.descriptors import readable

pytestmark = pytest.mark.unit


def test_descriptor_above_1023_is_waited_for() -> None:
    """``kbroker stop`` failed in a process with that many files."""
    high = 1_500
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= high:
        pytest.skip("the limit of open files is below 1,500")
    read, write = os.pipe()
    try:
        os.dup2(read, high)
        assert readable([high], 0) == []
        os.write(write, b"x")
        assert readable([high, read], 1) == [high, read]
    finally:
        for descriptor in (read, write, high):
            os.close(descriptor)
