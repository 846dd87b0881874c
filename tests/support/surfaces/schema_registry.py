"""A schema registry that has what a test gives it, and may be slow or lie."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeRegistry:
    """schemas: by id, what ``/schemas/ids/ID`` answers; of Protobuf (source, descriptor in base64).
    silence: while it is set, nothing is answered. raw: answered to everything instead, if given.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, int], dict[str, Any]] = {}
        self.silent = False
        self.ended = threading.Event()
        self.raw: bytes | None = None
        self.requests: list[str] = []
        self.url = ""

    def answer(self, path: str) -> bytes | None:
        """None if there is nothing of that name."""
        place, _, query = path.partition("?")
        words = place.strip("/").split("/")
        found: dict[str, Any] | None = None
        if words[:2] == ["schemas", "ids"]:
            found = self.schemas.get(int(words[2]))
        elif words[:1] == ["subjects"]:
            found = self.subjects.get((words[1], int(words[3])))
        if found is None:
            return None
        serialized = found.get("serialized")
        shown = {name: value for name, value in found.items() if name != "serialized"}
        if serialized and "format=serialized" in query:
            shown["schema"] = serialized
        return json.dumps(shown).encode()


@contextmanager
def schema_registry() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.requests.append(self.path)
            if registry.silent:
                registry.ended.wait(60)
                return
            body = registry.answer(self.path) if registry.raw is None else registry.raw
            status = 404 if body is None else 200
            body = b'{"error_code": 40403, "message": "Schema not found"}' if body is None else body
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        registry.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
