"""Python packs the structs that the extensions at the other end of a lane unpack."""

from __future__ import annotations

import struct

import pytest

from kbroker._ext.network.express_path import repeated, routes
from kbroker._ext.shared import lane_layout
from kbroker.handlers import dispatch  # noqa: F401  all handlers, for what is announced
from kbroker.handlers.registry import served_range
from kbroker.ipc.lane_calls import EXPRESS_TOKEN, REPEATED, is_express
from kbroker.ipc.mailbox import ENVELOPE
from kbroker.protocol.api import ApiKey

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", ["ENVELOPE", "REQUEST", "RESPONSE", "FOLLOWER"])
def test_format_has_the_size_of_the_struct(name: str) -> None:
    """A struct with padding, or a field missing in its format, would shift the rest."""
    layout = getattr(lane_layout, f"{name}_FORMAT")
    assert struct.calcsize(layout) == getattr(lane_layout, f"{name}_BYTES")


def test_envelope_has_sixteen_bytes() -> None:
    assert ENVELOPE.size == 16


def test_tokens_of_the_express_path_have_the_highest_bit() -> None:
    assert EXPRESS_TOKEN == 1 << 63
    assert is_express(struct.pack("=Q", EXPRESS_TOKEN | 5))
    assert not is_express(struct.pack("=Q", EXPRESS_TOKEN - 1))


def test_express_path_takes_the_versions_that_are_served() -> None:
    """From the announced versions: a new last version takes this path as soon as it is
    supported.
    """
    for key, first, last, first_flexible, _ in routes():
        served = served_range(key)
        assert served is not None
        assert served[0] <= first <= last == served[1]
        assert first_flexible == ApiKey(key).first_flexible


def test_express_path_repeats_what_handlers_repeat() -> None:
    assert set(repeated()) <= REPEATED
