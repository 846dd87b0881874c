"""The kinds of child process, each with what belongs to it alone."""

import kbroker.record  # noqa: F401 - extensions need its codecs
