"""All logs of an io worker: opened, checked, synced, kept to their retention and closed."""
