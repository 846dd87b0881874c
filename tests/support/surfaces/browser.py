"""Headless Chromium, driven through chromedriver by WebDriver's JSON over HTTP."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

from kbroker.testing import wait_until

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
# A busy machine takes a minute to start a browser.
ANSWER_S = 240
# So often an element may be replaced between two calls.
STALE_MAX = 5
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--no-first-run",
)


class PageError(Exception):
    """The browser could not do what was asked."""


class Browser:
    """One window. Skips the test where chromium or chromium-driver is missing."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        programs = shutil.which("chromedriver"), shutil.which("chromium")
        if None in programs:
            pytest.skip("chromium and chromedriver are not installed")
        driver, binary = programs
        directory.mkdir(parents=True, exist_ok=True)
        self._log_path = directory / "chromedriver.log"
        wait_until(lambda: self._starts(str(driver)), 60)
        self._url = f"http://127.0.0.1:{self._port()}"
        options = {
            "binary": binary,
            "args": [*ARGUMENTS, *arguments, f"--user-data-dir={directory / 'profile'}"],
        }
        capabilities = {
            "alwaysMatch": {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL"},
                "unhandledPromptBehavior": "ignore",
            }
        }
        found = self._call("POST", "/session", {"capabilities": capabilities})
        self._session = f"/session/{found['sessionId']}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._call("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(30)

    def _starts(self, driver: str) -> bool:
        """Once: the free port that it takes for IPv6 may be in use for IPv4, and then it exits."""
        with self._log_path.open("wb") as log:
            self._driver = subprocess.Popen([driver, "--port=0"], stdout=log, stderr=log)
        wait_until(lambda: self._port() is not None or self._driver.poll() is not None, 60)
        return self._port() is not None

    def _port(self) -> int | None:
        found = re.search(r"successfully on port (\d+)", self._log_path.read_text())
        return int(found[1]) if found else None

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise PageError(f"{value['error']}: {value['message']}") from None

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A command of WebDriver, below the session."""
        return self._call(method, self._session + path, body)

    # -- what tests do

    def open(self, url: str) -> None:
        self.ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """The result of JavaScript with ``return``."""
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def size(self, width: int, height: int) -> None:
        self.ask(
            "POST",
            "/goog/cdp/execute",
            {
                "cmd": "Emulation.setDeviceMetricsOverride",
                "params": {
                    "width": width,
                    "height": height,
                    "deviceScaleFactor": 1,
                    "mobile": False,
                },
            },
        )

    def text(self, selector: str = "body") -> str:
        """What a person can read there; empty if there is no such element."""
        found: str = self.run(
            "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''", selector
        )
        return found

    def await_text(self, text: str, selector: str = "body", timeout: float = 30.0) -> None:
        wait_until(lambda: text in self.text(selector), timeout)

    def click(self, selector: str) -> None:
        self._act("css selector", selector, "click")

    def click_text(self, text: str, tag: str = "*") -> None:
        self._act("xpath", f"//{tag}[normalize-space(text())={json.dumps(text)}]", "click")

    def type(self, selector: str, text: str) -> None:
        self._act("css selector", selector, "value", {"text": text})

    def _act(self, using: str, value: str, what: str, body: Any = None) -> None:
        """Pages are drawn again every few seconds: what was found may be gone when it is used."""
        for _ in range(STALE_MAX):
            try:
                self.ask("POST", f"/element/{self._find(using, value)}/{what}", body)
                return
            except PageError as error:
                stale = error
                if "stale element" not in str(error):
                    raise
        raise stale

    def press(self, *keys: str) -> None:
        """Press and release keys, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.ask(
            "POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]}
        )

    def _find(self, using: str, value: str) -> str:
        found: dict[str, str] = self.ask("POST", "/element", {"using": using, "value": value})
        return found[ELEMENT]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("GET", "/screenshot")))

    def messages(self) -> list[str]:
        """What the console of the browser has got since the last call: errors, violations."""
        rows = self.ask("POST", "/se/log", {"type": "browser"})
        return [f"{row['level']} {row['message']}" for row in rows]
