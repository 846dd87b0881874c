"""Every client reads what kbroker's producer writes, and places records as it does."""

from __future__ import annotations

import time

import pytest
from interop.conftest import ALL
from support.drivers import CODECS, Driver, Message, payloads
from support.drivers.ours import OurProducer
from support.running.grids import some_of

from kbroker.testing import Broker

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("codec", some_of(CODECS, ["none", "zstd"]))
@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_others_read_what_it_writes(broker: Broker, driver: Driver, made: str, codec: str) -> None:
    now = int(time.time() * 1000)
    messages = [
        Message(one.value, b"%d" % n, timestamp_ms=now + n) for n, one in enumerate(payloads(300))
    ]
    offsets = OurProducer(broker.bootstrap).produce(made, messages, codec=codec, batch_size=2000)

    assert offsets == list(range(300))
    records = driver.fetch(made, 300)
    assert [record.value for record in records] == [message.value for message in messages]
    assert [record.key for record in records] == [message.key for message in messages]
    if driver.timestamps:
        assert [record.timestamp_ms for record in records] == [
            message.timestamp_ms for message in messages
        ]


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_others_read_its_headers(broker: Broker, driver: Driver, made: str) -> None:
    # kcat prints them as text.
    headers = (("trace", b"1"), ("empty", b""), ("trace", b"again"))
    OurProducer(broker.bootstrap).produce(made, [Message(b"v", headers=headers)])

    (record,) = driver.fetch(made, 1)
    assert tuple(record.headers) == headers
