"""Every message in every version survives encoding and decoding."""

import random

import pytest
from support.network.codec_samples import (
    SEED,
    every_version,
    message_classes,
    random_message,
    versions_of,
)
from support.running.in_one import in_one

from kbroker.protocol import codec

pytestmark = pytest.mark.wire


@in_one("cls", message_classes())
def test_message_in_every_version_decodes_to_what_was_encoded(cls):
    for version in versions_of(cls):
        rng = random.Random(f"{SEED} {cls.__name__} {version}")
        for size in (0, 1, 3):
            message = random_message(cls, version, rng, size=size)

            encoded = codec.encode(message, version)

            assert codec.decode_exact(cls, version, encoded) == message, (version, SEED)
            assert codec.decode_exact(cls, version, memoryview(encoded)) == message


def finished(steps):
    """The return value of a generator."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


@in_one("cls", message_classes())
def test_message_is_the_same_when_it_is_encoded_and_decoded_in_steps(cls):
    for version in versions_of(cls):
        rng = random.Random(f"{SEED} {cls.__name__} {version}")
        for size in (0, 3):
            message = random_message(cls, version, rng, size=size)
            encoded = codec.encode(message, version)
            out = bytearray()

            finished(codec.encode_steps(message, version, out))

            assert out == encoded, (version, SEED)
            decoded = finished(codec.decode_steps(cls, version, encoded))
            assert decoded == (message, len(encoded)), (version, SEED)


@in_one("cls", message_classes())
def test_message_of_defaults_encodes_in_every_version(cls):
    for version in versions_of(cls):
        message = cls()

        decoded = codec.decode_exact(cls, version, codec.encode(message, version))

        assert decoded == message


def test_decode_with_offset_returns_the_position_after_the_message():
    rng = random.Random(SEED)
    for cls, version in every_version():
        message = random_message(cls, version, rng)
        encoded = codec.encode(message, version)

        decoded, end = codec.decode(cls, version, b"ab" + encoded + b"cd", 2)

        assert decoded == message
        assert end == 2 + len(encoded)
