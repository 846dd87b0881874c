"""One module per kind of child process."""

import kbroker.record  # noqa: F401 - extensions need its codecs
