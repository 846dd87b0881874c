"""Groups: the classic protocol, the consumer protocol (KIP-848), and what they share."""
