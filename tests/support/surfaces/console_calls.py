"""Calls of the console's API."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from support.surfaces.answer_schemas import check_answer

from kbroker.testing import Broker

API = "/api/v1"


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        text: str = self.json["detail"]
        return text


def call(
    broker: Broker,
    path: str,
    body: Any = None,
    *,
    method: str | None = None,
    login: tuple[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """A request below ``API``, or of a path that begins with two slashes. body: becomes JSON. The
    answer of an operation is checked against its schema.
    """
    url = broker.metrics_url + (path[1:] if path.startswith("//") else API + path)
    given = dict(headers or {})
    data = None
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given.setdefault("Content-Type", "application/json")
    if login is not None:
        given["Authorization"] = "Basic " + base64.b64encode(":".join(login).encode()).decode()
    request = urllib.request.Request(url, data, given, method=method)
    answer = _answer(request)
    is_json = answer.headers.get("Content-Type", "").endswith("json")
    if is_json and not path.startswith("//"):
        check_answer(request.get_method(), path, answer.status, answer.json)
    return answer


def _answer(request: urllib.request.Request) -> Answer:
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return Answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


def got(broker: Broker, path: str, body: Any = None, **how: Any) -> Any:
    """The document of a call that succeeds."""
    answer = call(broker, path, body, **how)
    assert answer.status == 200, (answer.status, answer.body[:2000])
    return answer.json
