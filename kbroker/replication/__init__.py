"""The roles of this broker in its partitions, and how its logs follow their leaders."""

import kbroker.record  # noqa: F401 - extensions need its codecs
