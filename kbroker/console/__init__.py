"""The web console and its API: an ASGI application that is a client of the broker it comes with.

It runs in the exporter process, and is imported when somebody first asks for it
(docs/decisions/0028-console.md). Everything but the state of the processes comes over the wire,
with the rights of whoever asks.
"""
