"""The arena's buddy allocator compared with a list of allocations."""

import mmap
import random

import pytest

from kbroker._ext.shared.arena import PAGE_SIZE, Arena, ArenaProbe

pytestmark = pytest.mark.property

SIZE = 64 * PAGE_SIZE
SMALL_BYTES, SMALL_MAX = 32 * PAGE_SIZE, 16 * PAGE_SIZE


@pytest.mark.parametrize("seed", range(20))
def test_arena_random_blocks_never_overlap_and_all_return(seed):
    rng = random.Random(seed)
    probe = ArenaProbe(Arena(bytearray(SIZE), SIZE))
    held: dict[int, int] = {}

    for _ in range(500):
        if held and rng.random() < 0.45:
            offset = rng.choice(list(held))
            del held[offset]
            probe.release(offset)
            continue
        wanted = rng.randint(1, SIZE // rng.choice([1, 4, 16, 64]))
        block = probe.acquire(wanted)
        if block is None:
            continue
        offset, capacity = block
        assert capacity >= wanted
        assert 0 <= offset and offset + capacity <= SIZE
        assert all(offset + capacity <= o or o + c <= offset for o, c in held.items()), seed
        held[offset] = capacity
        assert probe.arena.allocated == sum(held.values())
    for offset in held:
        probe.release(offset)

    assert probe.arena.allocated == 0
    assert probe.acquire(SIZE) == (0, SIZE), "free buddies must have joined again"


@pytest.mark.parametrize("seed", range(20))
def test_arena_of_two_parts_keeps_the_small_one_for_small_blocks(seed):
    rng = random.Random(seed)
    probe = ArenaProbe(Arena(bytearray(SMALL_BYTES + SIZE), SIZE, SMALL_BYTES))
    held: dict[int, int] = {}

    for _ in range(500):
        if held and rng.random() < 0.45:
            offset = rng.choice(list(held))
            del held[offset]
            probe.release(offset)
            continue
        wanted = rng.randint(1, SIZE // rng.choice([1, 4, 16, 64]))
        from_large = rng.random() < 0.5
        block = probe.acquire(wanted, from_large)
        if block is None:
            continue
        offset, capacity = block
        assert all(offset + capacity <= o or o + c <= offset for o, c in held.items()), seed
        if capacity > SMALL_MAX:
            assert from_large and offset >= SMALL_BYTES
        assert offset + capacity <= SMALL_BYTES or (from_large and offset >= SMALL_BYTES)
        held[offset] = capacity
    for offset in held:
        probe.release(offset)

    assert probe.acquire(SIZE) == (SMALL_BYTES, SIZE), "free buddies must have joined again"
    assert {probe.acquire(SMALL_MAX)[0] for _ in range(2)} == {0, SMALL_MAX}
    assert probe.acquire(1) is None


def test_arena_full_returns_nothing_until_a_block_is_freed():
    probe = ArenaProbe(Arena(bytearray(4 * PAGE_SIZE), 4 * PAGE_SIZE))
    first = probe.acquire(2 * PAGE_SIZE)
    probe.acquire(2 * PAGE_SIZE)

    assert probe.acquire(1) is None
    probe.release(first[0])
    assert probe.acquire(1) is not None


def test_arena_smaller_than_its_largest_block_is_rejected():
    with pytest.raises(ValueError, match="cannot hold"):
        Arena(bytearray(PAGE_SIZE), 2 * PAGE_SIZE)


def test_arena_trim_gives_pages_back_only_after_a_quiet_time():
    region = mmap.mmap(-1, 1 << 24)
    probe = ArenaProbe(Arena(region, 1 << 24))
    offset, capacity = probe.acquire(1 << 24)
    region[capacity - 1] = 7

    assert not probe.arena.trim(), "a block is in use"
    probe.release(offset)
    assert probe.arena.trim(), "nothing was allocated since the last call"
    assert region[capacity - 1] == 0
    assert not probe.arena.trim(), "there is nothing more to give"
