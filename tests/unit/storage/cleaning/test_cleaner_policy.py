"""Which logs are compacted, how far, and in which groups."""

from __future__ import annotations

import itertools

import pytest

from kbroker.storage.cleaning.cleaner_policy import (
    GROUP_SEGMENTS_MAX,
    NO_LIMIT,
    CleanableSegment,
    CompactionRules,
    DirtyRange,
    dirty_range,
    group_segments,
)

pytestmark = pytest.mark.unit

NOW_MS = 1_000_000
RULES = CompactionRules(0.5, 0, NO_LIMIT)


def segments(*bases: int, size: int = 100, **more: int) -> list[CleanableSegment]:
    """Sealed segments; the last number is the base of the active one."""
    return [
        CleanableSegment(base, following, size, 8, **more)
        for base, following in itertools.pairwise(bases)
    ]


def section(
    found: list[CleanableSegment],
    checkpoint: int | None = None,
    rules: CompactionRules = RULES,
    *,
    start: int = 0,
    end: int = 1000,
    stable: int = 1000,
) -> DirtyRange:
    return dirty_range(
        found,
        checkpoint,
        rules,
        NOW_MS,
        log_start_offset=start,
        log_end_offset=end,
        last_stable_offset=stable,
    )


def test_dirty_range_of_a_log_never_compacted_is_all_sealed_segments():
    found = section(segments(0, 10, 20, 30))

    assert (found.first_dirty, found.end, found.ratio) == (0, 30, 1.0)
    assert found.is_due(RULES)


def test_dirty_range_behind_the_checkpoint_is_weighed_against_the_clean_bytes():
    found = section(segments(0, 10, 20, 30, 40), 30)

    assert (found.clean_bytes, found.dirty_bytes) == (300, 100)
    assert not found.is_due(RULES)
    assert found.is_due(CompactionRules(0.2, 0, NO_LIMIT))


def test_dirty_range_ends_in_front_of_the_segment_with_the_last_stable_offset():
    assert section(segments(0, 10, 20, 30), stable=25).end == 20
    assert section(segments(0, 10, 20, 30), stable=20).end == 20
    assert section(segments(0, 10, 20, 30), stable=0).end == 0


def test_dirty_range_ends_in_front_of_a_young_record():
    found = segments(0, 10, 20, largest_timestamp=NOW_MS - 5000)
    found += segments(20, 30, 40, largest_timestamp=NOW_MS - 500)

    assert section(found, rules=CompactionRules(0.5, 1000, NO_LIMIT)).end == 20
    assert section(found, rules=CompactionRules(0.5, 100, NO_LIMIT)).end == 40


def test_dirty_range_is_due_when_a_record_has_waited_too_long():
    found = segments(0, 10, 20, first_timestamp=NOW_MS - 1)
    found += segments(20, 30, first_timestamp=NOW_MS - 5000)
    rules = CompactionRules(0.9, 0, 3000)

    late = section(found, 20, rules)
    assert late.delay_ms == 2000 and late.is_due(rules)
    assert not section(found, 30, rules).is_due(rules)


@pytest.mark.parametrize("checkpoint", [4, 2000])
def test_dirty_range_with_a_checkpoint_outside_the_log_starts_again(checkpoint):
    found = section(segments(0, 10, 20), checkpoint, start=5)

    assert found.is_reset and found.first_dirty == 5


def test_dirty_range_of_an_empty_log_is_never_due():
    assert not section([]).is_due(CompactionRules(0.0, 0, NO_LIMIT))


def bases(groups: list[list[CleanableSegment]]) -> list[list[int]]:
    return [[segment.base_offset for segment in group] for group in groups]


def test_groups_stay_within_segment_bytes():
    groups = group_segments(segments(0, 1, 2, 3, 4, 5), 5, segment_bytes=250, index_bytes=999)

    assert bases(groups) == [[0, 1], [2, 3], [4]]


def test_groups_stay_within_index_bytes():
    groups = group_segments(segments(0, 1, 2, 3), 3, segment_bytes=9999, index_bytes=16)

    assert bases(groups) == [[0, 1], [2]]


def test_groups_stay_within_the_offsets_of_an_index_entry():
    far = 1 << 31
    groups = group_segments(
        segments(0, 5, far, far + 1), far + 1, segment_bytes=9999, index_bytes=99
    )
    assert bases(groups) == [[0, 5], [far]]

    groups = group_segments(segments(0, 5, far + 1), far + 1, segment_bytes=9999, index_bytes=99)
    assert bases(groups) == [[0], [5]]


def test_groups_leave_out_what_begins_at_the_end():
    assert bases(group_segments(segments(0, 1, 2, 3), 2, segment_bytes=999, index_bytes=999)) == [
        [0, 1]
    ]


def test_groups_have_a_bound():
    found = segments(*range(GROUP_SEGMENTS_MAX + 2), size=1)

    assert [
        len(g) for g in group_segments(found, 10**6, segment_bytes=10**6, index_bytes=10**6)
    ] == [
        GROUP_SEGMENTS_MAX,
        1,
    ]
