"""Prometheus's exposition format (version 0.0.4)."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def escape(text: str) -> str:
    """Escape a label value."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
