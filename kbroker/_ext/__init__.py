"""Compiled extensions; their sources are in ext/kbroker/_ext."""
