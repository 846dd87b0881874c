"""What a program must let its threads be."""

from __future__ import annotations

import sys

from kbroker.client.errors import UnsupportedHost


def require_threads() -> None:
    """Raises UnsupportedHost where threads are greenlets: loops that run without the interpreter's
    lock would stop all of them.
    """
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("threading"):
        raise UnsupportedHost("gevent", "monkey.patch_all(thread=False)")
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        raise UnsupportedHost("eventlet", "monkey_patch(thread=False)")
