"""Shared regions: inherited, sealed, nameless."""

from __future__ import annotations

import os

import pytest

from kbroker.ipc.regions import SharedRegions, create_region

pytestmark = pytest.mark.unit


def test_region_is_zeroed_and_shared_with_a_fork() -> None:
    region = create_region("kbroker-test", 8192)
    assert region[:] == bytes(8192)

    pid = os.fork()
    if pid == 0:
        region[4096:4100] = b"here"
        os._exit(0)
    os.waitpid(pid, 0)

    assert region[4096:4100] == b"here"
    region.close()


def test_region_cannot_be_shrunk_under_a_reader() -> None:
    region = create_region("kbroker-test", 8192)
    [fd] = [
        int(name)
        for name in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{name}")
        and "memfd:kbroker-test" in os.readlink(f"/proc/self/fd/{name}")
    ]

    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)

    region.close()


def named_mappings() -> set[str]:
    """Named shared memory of this process, which is created and removed during a run."""
    with open("/proc/self/maps") as file:
        return {line.split()[-1] for line in file if " /dev/shm/" in line}


def test_regions_have_no_names_and_cost_nothing_untouched() -> None:
    names_before = named_mappings()

    regions = SharedRegions(8, 1 << 20, 5000, 1, 2, 1 << 30, 1 << 16, 3, 11)

    assert len(regions.arenas) == 2
    assert len(regions.arenas[0]) == 1 << 30
    assert named_mappings() == names_before
