"""The console's pages in a browser, as tests visit them.

Set KBROKER_SCREENSHOTS to a directory to keep pictures of every page.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.surfaces.browser import Browser

from kbroker.testing import Broker

ATTACK = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
    "\"'><svg onload=window.hacked=1>{{7*7}}${7*7}javascript:window.hacked=1\u202egnp\u2066"
)
WIDTH, HEIGHT = 1200, 900
NARROW = 400


@contextmanager
def checked(browser: Browser) -> Iterator[Browser]:
    """Fails if anything on the pages ran a script, or tried."""
    browser.open("about:blank")
    browser.messages()
    browser.size(WIDTH, HEIGHT)
    yield browser
    assert browser.run("return window.hacked") is None
    said = [line for line in browser.messages() if "favicon" not in line]
    assert [line for line in said if "Security Policy" in line or "TrustedHTML" in line] == []
    # Requests are refused, and brokers stopped, by tests that want it so.
    assert [line for line in said if "SEVERE" in line and "Failed to load" not in line] == []


def shot(browser: Browser, name: str) -> None:
    place = os.environ.get("KBROKER_SCREENSHOTS")
    if place:
        Path(place).mkdir(parents=True, exist_ok=True)
        browser.screenshot(Path(place) / f"{name}.png")


def visit(browser: Browser, broker: Broker, path: str, text: str) -> None:
    """Open a page from the beginning, and wait until it shows this."""
    browser.open("about:blank")
    browser.open(f"{broker.metrics_url}/console/#/{path}")
    browser.await_text(text)


def fits(browser: Browser) -> bool:
    """No part of the page but tables, which scroll by themselves, is wider than the window."""
    wide: bool = browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    return wide
