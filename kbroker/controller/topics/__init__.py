"""Topics: created, deleted and grown by request, or changed by others."""
