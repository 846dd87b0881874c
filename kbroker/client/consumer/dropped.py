"""The ends of consumers that nobody has any more, although they were not closed."""

from __future__ import annotations

import logging
import os
import threading
import warnings
import weakref
from contextlib import suppress
from typing import Any

from kbroker.client.consumer.consumer_metrics import ConsumerMetrics
from kbroker.client.consumer.core import Core
from kbroker.client.monitoring.monitoring import Monitoring

logger = logging.getLogger(__name__)

_CLOSE_S = 30.0


def watch(
    consumer: object, core: Core, monitoring: Monitoring, metrics: ConsumerMetrics
) -> weakref.finalize[Any, Any]:
    """Let it leave its group when there is no reference to the consumer any more: its threads
    would stay, and its partitions with them, until ``max.poll.interval.ms`` has passed.

    The parts of it may not refer to the consumer.
    """
    made = weakref.finalize(consumer, _dropped, core, monitoring, metrics)
    made.atexit = False  # the end of a program has its own rules
    return made


def _dropped(core: Core, monitoring: Monitoring, metrics: ConsumerMetrics) -> None:
    """In any thread that frees memory, at any time: nothing here may wait."""
    if core.closed or core.pid != os.getpid():
        return
    warnings.warn(f"the consumer {core.client_id} was not closed", ResourceWarning, stacklevel=2)
    name = f"{core.client_id}-closing"
    with suppress(RuntimeError):  # the interpreter ends
        parts = core, monitoring, metrics
        threading.Thread(target=_close, args=parts, name=name, daemon=True).start()


def _close(core: Core, monitoring: Monitoring, metrics: ConsumerMetrics) -> None:
    """What it has handled is unknown, so nothing is committed; nor is a listener called, in a
    thread that the program does not know.
    """
    try:
        core.stop_auto_commit()
        if core.membership is not None:
            core.membership.listener = None
        core.close(_CLOSE_S)
    except Exception as error:
        logger.warning("cannot close consumer %s: %s", core.client_id, error)
    finally:
        monitoring.close(0.0)
        metrics.close()
