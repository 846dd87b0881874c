"""Which APIs a broker has and in which versions, as it says at the beginning of a connection
(ApiVersions, KIP-35; KIP-511 for the client's name; KIP-584 for finalized features).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

# The version that is asked in first. A broker that lacks it responds in version 0, and is asked in
# that.
_FIRST_ASKED = 3


class CannotNegotiate(Exception):
    """The broker does not say what it has."""


class Negotiation:
    """software: name and version of the client. newest: by API the newest version that it sends,
    where that is not the codec's newest.
    """

    def __init__(self, software: tuple[str, str], newest: Mapping[ApiKey, int]) -> None:
        self.versions: dict[int, tuple[int, int]] = {}
        self.finalized_features: dict[str, int] = {}
        self._software = software
        self._newest = newest

    def steps(self) -> Generator[tuple[ApiVersionsRequest, int], ApiVersionsResponse, None]:
        """Yields a request with its version, and is sent the response. Raises CannotNegotiate."""
        name, software_version = self._software
        request = ApiVersionsRequest(
            client_software_name=name, client_software_version=software_version
        )
        response = yield request, _FIRST_ASKED
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = yield request, 0
        if response.error_code:
            raise CannotNegotiate
        self.versions = versions_in(response)
        self.finalized_features = {
            row.name: row.max_version_level for row in response.finalized_features
        }

    def version_of(self, api: ApiKey, at_most: int | None = None) -> int | None:
        """The newest version that both sides have; None if there is none."""
        first, last = self.versions.get(api, (0, -1))
        ours_first, ours_last = api.versions
        last = min(last, ours_last, self._newest.get(api, ours_last))
        if at_most is not None:
            last = min(last, at_most)
        return None if last < max(first, ours_first) else last


def versions_in(response: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    """The first and the last version of each API."""
    return {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}


def decoded_version(version: int, body: bytes | memoryview) -> int:
    """The version that a response to ApiVersions is in: a broker that lacks the version responds in
    0, which begins with the error code.
    """
    return 0 if len(body) >= 2 and any(body[:2]) else version
