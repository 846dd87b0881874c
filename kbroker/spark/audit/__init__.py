"""``kbroker-audit``: whether every record that was published has arrived everywhere, and how late.

``counter`` is for applications: it counts what they send or receive. ``counts`` gathers counts from
the audit topic, from loads and from logs; ``report`` compares them; ``cli`` is the command.
"""
