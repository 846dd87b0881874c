"""The ASGI application: the API, the files of the pages, and what is common to all responses.

Reading and writing the cluster blocks, so it runs in threads of its own (``THREADS``). What waits
for them is bounded by the connections that ``server`` accepts.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kbroker.client.errors import ClientError
from kbroker.console import openapi
from kbroker.console.cluster_metrics import Bounds, WholeCluster
from kbroker.console.decoding import Decoding
from kbroker.console.lags_elsewhere import LagsElsewhere
from kbroker.console.local_broker import LocalBroker
from kbroker.console.operation import CheckedRequest, Operation
from kbroker.console.operations import OPERATIONS
from kbroker.console.problems import MEDIA_TYPE, BadRequest, Problem, problem_of
from kbroker.console.sessions import ConsoleLogin, Sessions
from kbroker.console.topic_figures import TopicRates
from kbroker.diagnosis.group_progress import GroupWatch
from kbroker.exposition.own_hosts import is_own_host, refusal
from kbroker.exposition.text import CONTENT_TYPE

logger = logging.getLogger(__name__)

API = "/api/v1"
PAGES = "/console/"
THREADS = 4
# BOUND: threads that may ask the brokers for metrics.
SCRAPES = 2
# BOUND: bytes of a request's body, seconds until it must be there, and of its query.
BODY_BYTES_MAX = 2 << 20
BODY_S = 10.0
QUERY_CHARS_MAX = 6000
ASSETS = Path(__file__).parent / "assets"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing of a page comes from elsewhere, and no text becomes markup.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    # The exporter reads the head of each request, so that one port serves metrics and console.
    (b"connection", b"close"),
)


_CHALLENGE = {"WWW-Authenticate": 'Basic realm="kbroker", charset="UTF-8"'}
# Browsers that heed it drop passwords with cookies.
_FORGET = {"Clear-Site-Data": '"cookies"'}


class _Problem(JSONResponse):
    media_type = MEDIA_TYPE


class Console:
    """Serves one broker."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._sessions = Sessions(broker)
        self._threads = ThreadPoolExecutor(THREADS, "console")
        self._scrapes = threading.Semaphore(SCRAPES)
        self._lags = LagsElsewhere(broker.lags_elsewhere)
        self._groups = GroupWatch()
        self._rates = TopicRates()
        self._decoding = None if broker.registry is None else Decoding(broker.registry)
        self._document = openapi.document(OPERATIONS)
        routes = [
            Route("/", _redirect_to_pages, methods=["GET"]),
            Route("/login", self._login, methods=["GET"]),
            Route("/logout", self._logout, methods=["GET"]),
            Route("/console", _redirect_to_pages, methods=["GET"]),
            Route(PAGES, self._page, methods=["GET"]),
            Route(PAGES + "{name}", _asset, methods=["GET"]),
            Route(f"{API}/openapi.json", self._openapi, methods=["GET"]),
            Route("/metrics/cluster", self._metrics, methods=["GET"]),
        ]
        by_path: dict[str, dict[str, Operation]] = {}
        for each in OPERATIONS:
            by_path.setdefault(each.path, {})[each.method] = each
        for path, methods in by_path.items():
            endpoint = partial(self._answer, methods)
            routes.append(Route(API + path, endpoint, methods=list(methods)))
        app = Starlette(
            routes=routes,
            exception_handlers={
                Problem: _problem,
                HTTPException: _http_error,
                Exception: _unexpected,
            },
        )
        self.app: ASGIApp = _Guarded(app, broker.hosts)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._lags.close()
        self._sessions.close()
        if self._decoding is not None:
            self._decoding.close()

    # -- responses

    async def _answer(self, methods: Mapping[str, Operation], request: Request) -> Response:
        operation = methods.get(request.method, methods.get("GET"))
        assert operation is not None
        if len(request.url.query) > QUERY_CHARS_MAX:
            raise BadRequest(f"the query has more than {QUERY_CHARS_MAX} characters")
        values = operation.values(request.path_params, request.query_params.multi_items())
        if operation.method == "POST":
            values |= operation.body_values(await _body(request))
        if self._broker.read_only and operation.method != "GET" and not values.get("dry_run"):
            text = "this console changes nothing, as console.read.only=true"
            raise Problem(403, "READ_ONLY", text)
        login = login_of(request)
        serve = partial(self._serve, operation, login, values)
        try:
            body = await asyncio.get_running_loop().run_in_executor(self._threads, serve)
        except ClientError as error:
            raise problem_of(error, operation.needs) from error
        return Response(body, media_type="application/json")

    def _serve(
        self, operation: Operation, login: ConsoleLogin | None, values: dict[str, Any]
    ) -> bytes:
        """In a thread."""
        with self._sessions.open(login) as cluster:
            user = login and login.user
            document = operation.serve(
                CheckedRequest(
                    cluster,
                    self._broker,
                    values,
                    self._decoding,
                    user,
                    self._groups,
                    self._rates,
                )
            )
        self._lags.maybe_look(partial(self._sessions.open, login))
        return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode()

    async def _metrics(self, request: Request) -> Response:
        """Of the whole cluster. Any query is taken, as by ``/metrics``."""
        login = login_of(request)
        if not self._scrapes.acquire(blocking=False):
            raise Problem(503, "BUSY", "the brokers are being asked for another scrape")
        scrape = self._threads.submit(self._scrape, login)
        # When the thread is free again, which may be after the request was given up.
        scrape.add_done_callback(lambda _: self._scrapes.release())
        try:
            text = await asyncio.wrap_future(scrape)
        except ClientError as error:
            raise problem_of(error, "DESCRIBE on topics and groups") from error
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    def _scrape(self, login: ConsoleLogin | None) -> bytes:
        """In a thread."""
        bounds = Bounds(self._broker.partitions_max, self._broker.offsets_max)
        with self._sessions.open(login) as cluster:
            metrics = WholeCluster(cluster, bounds)
        return "".join(metrics.lines()).encode()

    async def _page(self, request: Request) -> Response:
        """With buttons for what the console may do."""
        text = (ASSETS / "index.html").read_text()
        if self._broker.read_only:
            text = text.replace("<html", "<html data-read-only", 1)
        return Response(text, media_type=_TYPES[".html"])

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(self._document)

    async def _login(self, request: Request) -> Response:
        """Makes the browser ask for a password, and send it from then on."""
        if login_of(request) is None:
            raise Problem(401, "LOGIN_REQUIRED", "log in with a user name and a password")
        return RedirectResponse(PAGES)

    async def _logout(self, request: Request) -> Response:
        """Makes the browser forget the password of this user: it drops one that is rejected, and
        asks for another one.
        """
        login = login_of(request)
        if login is None or login.user != request.query_params.get("user"):
            return RedirectResponse(PAGES)
        text = (ASSETS / "logged_out.html").read_text()
        return Response(text, 401, {**_CHALLENGE, **_FORGET}, _TYPES[".html"])


def login_of(request: Request) -> ConsoleLogin | None:
    """Who asks; None for nobody in particular. Raises BadRequest."""
    given = request.headers.get("authorization")
    if given is None:
        return None
    scheme, _, text = given.partition(" ")
    try:
        user, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except ValueError:  # no base64, or no UTF-8
        user, colon, password = "", "", ""
    usable = colon and user and password and "\0" not in user + password
    if scheme.lower() != "basic" or not usable:
        raise BadRequest("Authorization: only Basic is allowed, with a user name and a password")
    return ConsoleLogin(user, password)


async def _body(request: Request) -> Any:
    """The JSON document of a request. Raises Problem."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Problem(415, "UNSUPPORTED_MEDIA_TYPE", "the body must be application/json")
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                data += piece
                if len(data) > BODY_BYTES_MAX:
                    text = f"the body has more than {BODY_BYTES_MAX} bytes"
                    raise Problem(413, "BODY_TOO_LARGE", text)
    except TimeoutError:
        raise Problem(408, "TIMEOUT", f"the body was not there within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise BadRequest("the connection was closed before the end of the body") from None
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON in UTF-8") from None


async def _redirect_to_pages(request: Request) -> Response:
    return RedirectResponse(PAGES)


async def _asset(request: Request) -> Response:
    path = ASSETS / request.path_params["name"]
    kind = _TYPES.get(path.suffix)
    if kind is None or path.parent != ASSETS or not path.is_file():
        raise HTTPException(404)
    return FileResponse(path, media_type=kind)


def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    headers: Mapping[str, str] | None = None
    if error.status == 401:
        headers = _CHALLENGE
    return _Problem(error.document, error.status, headers)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed = ", ".join(sorted((error.headers or {}).get("Allow", "GET").split(", ")))
    texts = {
        404: f"there is nothing here; see {API}/openapi.json",
        405: f"this path allows {allowed}",
    }
    problem = Problem(
        error.status_code,
        {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "HTTP_ERROR"),
        texts.get(error.status_code, error.detail),
    )
    return _Problem(problem.document, problem.status, error.headers)


def _unexpected(request: Request, error: Exception) -> Response:
    logger.error("console: cannot answer %s", request.url.path, exc_info=error)
    return _Problem(Problem(500, "UNKNOWN_SERVER_ERROR", "see the log of the broker").document, 500)


class _Guarded:
    """Headers of all responses; and requests that a page of another site may have made, which a
    browser sends with the user's password, are rejected.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        if scope["type"] != "http":
            return
        reason = self._suspicion(scope)
        if reason is None:
            await self._app(scope, receive, send_guarded)
            return
        document = Problem(403, "FOREIGN_REQUEST", reason).document
        await _Problem(document, 403)(scope, receive, send_guarded)

    def _suspicion(self, scope: Scope) -> str | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if not is_own_host(host, self._hosts):
            return refusal(host)
        origin = headers.get(b"origin")
        if origin is not None and origin.partition("://")[2] != host:
            return "pages of other sites may not use the API"
        if scope["method"] not in ("GET", "HEAD") and headers.get(b"sec-fetch-site") not in (
            None,
            "same-origin",
        ):
            return "pages of other sites may not use the API"
        return None
