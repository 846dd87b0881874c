"""One module per API key, imported when the key is first used: see ``kbroker.protocol.api``.

A class body holds the fields in the notation that ``kbroker.protocol.schema`` explains.
"""
