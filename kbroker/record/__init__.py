"""Record batches: checking, reading, building and compressing them.

Importing the package registers the codecs with the extensions that read and write batches.
"""

from kbroker.record import compression as compression
