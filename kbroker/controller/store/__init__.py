"""The controller's state in the metadata store: reading it, watching it, writing to it."""
