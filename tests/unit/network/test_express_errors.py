"""Error codes of responses that a network process passes on undecoded."""

from __future__ import annotations

from typing import Any

import pytest
from support.network.net_loop_harness import received

from kbroker._ext.network import express_path
from kbroker._ext.shared.request_times import RequestTimes, TimesView, region_size
from kbroker.handlers.support.error_counts import error_counts
from kbroker.ipc.lane_calls import Response
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, request_class, response_class
from kbroker.protocol.messages.offset_commit import OffsetCommitResponse

from .test_express_path import Bench, frame

pytestmark = pytest.mark.unit

CASES = [
    (ApiKey(key), version)
    for key, first, last, *_ in express_path.routes()
    for version in range(first, last + 1)
]


def request_of(key: ApiKey) -> Any:
    request = request_class(key)()
    for name in ("group_id", "transactional_id"):
        if name in type(request).__slots__:
            setattr(request, name, "g")
    return request


def response_of(key: ApiKey) -> Any:
    if key != ApiKey.OFFSET_COMMIT:
        return response_class(key)(error_code=27)
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    partition = OffsetCommitResponse.OffsetCommitResponsePartition
    return OffsetCommitResponse(
        topics=[
            topic(name="t", partitions=[partition(error_code=code) for code in (0, 25, 25)]),
            topic(name="other", partitions=[partition(partition_index=9)]),
        ]
    )


def counted(key: ApiKey, version: int, body: bytes) -> dict[int, int]:
    region = bytearray(region_size(1))
    bench = Bench()
    bench.loop.keep_times(RequestTimes(region, 0))
    client = bench.connect()
    client.send(frame(request_of(key), version))
    bench.turn()
    (request,) = bench.asked()
    bench.reply(Response(request.token, 0, body))
    bench.turn()
    assert received(client)
    return dict(TimesView(region, 1).errors(key))


@pytest.mark.parametrize(("key", "version"), CASES)
def test_errors_are_those_of_the_decoded_response(key: ApiKey, version: int) -> None:
    response = response_of(key)

    found = counted(key, version, codec.encode(response, version))

    assert found == error_counts(response)


@pytest.mark.parametrize("version", [1, 9, 10])
def test_response_that_is_cut_is_counted_as_far_as_it_goes(version: int) -> None:
    body = codec.encode(response_of(ApiKey.OFFSET_COMMIT), version)

    for size in range(len(body)):
        found = counted(ApiKey.OFFSET_COMMIT, version, body[:size])
        assert sum(found.values()) <= 4
