"""What a connection asks of a broker first: which APIs it has, in which versions."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.wire.negotiation import CannotNegotiate, Negotiation, decoded_version

pytestmark = pytest.mark.unit

PRODUCE_LAST = ApiKey.PRODUCE.versions[1]


def response(error: int = 0, **versions: tuple[int, int]) -> ApiVersionsResponse:
    rows = [
        ApiVersionsResponse.ApiVersion(api_key=ApiKey[name], min_version=first, max_version=last)
        for name, (first, last) in versions.items()
    ]
    level = ApiVersionsResponse.FinalizedFeatureKey(
        name="transaction.version", max_version_level=2, min_version_level=0
    )
    return ApiVersionsResponse(error_code=error, api_keys=rows, finalized_features=[level])


def negotiated(*responses: ApiVersionsResponse, **newest: int) -> tuple[Negotiation, list[int]]:
    """After these responses; the versions that were asked in."""
    negotiation = Negotiation(("me", "1.0"), {ApiKey[name]: v for name, v in newest.items()})
    steps = negotiation.steps()
    request, version = next(steps)
    asked = [version]
    assert (request.client_software_name, request.client_software_version) == ("me", "1.0")
    for number, answer in enumerate(responses, 1):
        try:
            _, version = steps.send(answer)
        except StopIteration:
            assert number == len(responses)
            return negotiation, asked
        asked.append(version)
    raise AssertionError("it asks on")


def test_versions_and_features_are_those_of_the_response() -> None:
    negotiation, asked = negotiated(response(PRODUCE=(3, 8), METADATA=(0, 5)))

    assert asked == [3]
    assert negotiation.versions == {ApiKey.PRODUCE: (3, 8), ApiKey.METADATA: (0, 5)}
    assert negotiation.finalized_features == {"transaction.version": 2}


def test_broker_without_the_version_is_asked_in_its_own() -> None:
    old = response(ErrorCode.UNSUPPORTED_VERSION, API_VERSIONS=(0, 0))

    negotiation, asked = negotiated(old, response(FETCH=(0, 4)))

    assert asked == [3, 0]
    assert negotiation.version_of(ApiKey.FETCH) == 4


@pytest.mark.parametrize(
    "errors",
    [
        [ErrorCode.UNKNOWN_SERVER_ERROR],
        [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION],
        [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED],
    ],
)
def test_broker_that_does_not_say_what_it_has_cannot_be_used(errors: list[int]) -> None:
    with pytest.raises(CannotNegotiate):
        negotiated(*map(response, errors))


@pytest.mark.parametrize(
    ("theirs", "newest", "at_most", "version"),
    [
        ((0, 100), {}, None, PRODUCE_LAST),
        ((3, 7), {}, None, 7),
        ((3, 7), {"PRODUCE": 5}, None, 5),
        ((3, 7), {}, 4, 4),
        ((3, 7), {}, 2, None),
        ((100, 100), {}, None, None),
    ],
)
def test_version_is_the_newest_that_both_have(
    theirs: tuple[int, int], newest: dict[str, int], at_most: int | None, version: int | None
) -> None:
    negotiation, _ = negotiated(response(PRODUCE=theirs), **newest)

    assert negotiation.version_of(ApiKey.PRODUCE, at_most) == version
    assert negotiation.version_of(ApiKey.FETCH) is None


def test_response_with_an_error_is_read_in_version_0() -> None:
    """A broker that lacks version 3 cannot write it (KIP-511)."""
    refused = codec.encode(response(ErrorCode.UNSUPPORTED_VERSION), 0)

    assert decoded_version(3, refused) == 0
    assert decoded_version(3, codec.encode(response(PRODUCE=(0, 3)), 3)) == 3
    assert decoded_version(3, b"") == 3
