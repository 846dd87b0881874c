"""Translates between the wire and the processes that own what a request is about.

A module for an API, or for a few that belong together; ``dispatch`` finds it. ``support`` has what
several of them share.
"""

import kbroker.record  # noqa: F401 - extensions need its codecs
