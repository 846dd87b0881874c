"""Which callbacks run for which change."""

import pytest

from kbroker.metastore.store import CHANGED, WatchEvent
from kbroker.metastore.watches import Watches

pytestmark = pytest.mark.unit

EVENT = WatchEvent(CHANGED, "/a")


def test_all_watches_of_the_node_are_told_and_no_others() -> None:
    watches, told = Watches(), []
    watches.add("/a", lambda event: told.append(("first", event)))
    watches.add("/a", lambda event: told.append(("second", event)))
    watches.add("/b", lambda event: told.append(("other", event)))
    watches.report(EVENT)
    assert told == [("first", EVENT), ("second", EVENT)]


def test_watch_that_cancels_itself_does_not_keep_others_from_being_told() -> None:
    watches, told = Watches(), []
    cancel = watches.add("/a", lambda event: cancel())
    watches.add("/a", told.append)
    watches.report(EVENT)
    watches.report(EVENT)
    cancel()  # a second time does nothing
    assert told == [EVENT, EVENT]
