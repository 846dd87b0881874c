"""ApiVersions (18): versions 0 to 4.

A newer version is answered by the dispatcher, in version 0 (KIP-511). No features are announced:
what Kafka names by them (KRaft metadata, KIP-848 groups, KIP-890 transactions) is not offered.
"""

from __future__ import annotations

import re

from kbroker.errors import ErrorCode
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import announced, api
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

# COMPAT: what Kafka takes for a client's name and version; clients fall back to version 0 or close.
SOFTWARE_PATTERN = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@api(ApiKey.API_VERSIONS, versions=(0, 4))
async def handle_api_versions(
    ctx: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """List every API and its versions."""
    if ctx.api_version >= 3:
        for text in (request.client_software_name, request.client_software_version):
            if not SOFTWARE_PATTERN.fullmatch(text):
                return ApiVersionsResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    entry = ApiVersionsResponse.ApiVersion
    return ApiVersionsResponse(
        api_keys=[
            entry(api_key=key, min_version=first, max_version=last)
            for key, first, last in announced()
        ]
    )
