"""Principals, operations, authorizers, and their verdicts."""
