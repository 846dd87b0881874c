"""Who asks, and what they may do: principals, operations, authorizers, and their verdicts."""
