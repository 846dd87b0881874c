"""Shared regions: inherited; those without names are sealed, those with names allocated."""

from __future__ import annotations

import os

import pytest
from support.brokers.shared_names import needs_names

from kbroker.ipc.named_memory import NamedMemory, named_runs, path_of
from kbroker.ipc.regions import RegionSizes, SharedRegions, create_region

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


SIZES = RegionSizes(
    process_count=8,
    timed_count=4,
    io_worker_count=1,
    feeder_count=2,
    slot_count=5000,
    arena_bytes=1 << 30,
    log_dir_count=3,
    quota_samples=11,
    status_bytes=500,
)


def named_mappings() -> set[str]:
    """Named shared memory of this process."""
    with open("/proc/self/maps") as file:
        return {line.split()[-1] for line in file if " /dev/shm/" in line}


def test_regions_without_names_cost_nothing_untouched() -> None:
    names_before = named_mappings()

    regions = SharedRegions(SIZES)

    assert len(regions.arenas) == 2
    assert len(regions.arenas[0]) == 1 << 30
    assert named_mappings() == names_before


@needs_names
def test_only_tables_have_names_and_every_byte_of_them_is_allocated() -> None:
    """A store into a hole of a full file system would end the process with SIGBUS."""
    memory = NamedMemory("00c0ffee")
    try:
        regions = SharedRegions(SIZES, memory.create)
        names = named_runs()["00c0ffee"]

        assert {"processes", "status", "partitions", "counters", "clients"} <= set(names)
        assert not [name for name in names if name.startswith(("arena", "group"))]
        for name in names:
            found = os.stat(path_of("00c0ffee", name))
            assert found.st_blocks * 512 >= found.st_size > 0, name
            assert found.st_mode & 0o777 == 0o600, name
        assert regions.partition_table[:64] == bytes(64)
    finally:
        memory.remove()
    assert "00c0ffee" not in named_runs()
