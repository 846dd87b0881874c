"""The transaction coordinator (KIP-98, KIP-360, KIP-890)."""
