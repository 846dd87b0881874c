"""Committed offsets of groups: storage, commit, fetch, expiry."""
