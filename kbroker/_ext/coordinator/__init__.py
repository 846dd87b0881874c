"""Offsets of groups: requests, records, and where they are kept."""
