"""The operations of ``/api/v1``, by subject."""
