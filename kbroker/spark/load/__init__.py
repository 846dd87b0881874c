"""``kbroker-load``: topics into Parquet, Delta or a database, each record once over any crash.

``commits`` says what a commit is and ``log`` keeps them; ``layout`` names every path; ``writer``
turns record batches into staged files; ``directory``, ``delta`` and ``database`` are the
destinations; ``engine`` is the run; ``maintenance`` the other commands; ``cli`` the command line.
The protocol and why it holds are in ``docs/formats/load-commits.md``.
"""
