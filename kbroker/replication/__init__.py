"""Leader and follower roles of this broker's replicas, and how followers replicate."""

import kbroker.record  # noqa: F401 - extensions need its codecs
