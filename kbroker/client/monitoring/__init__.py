"""What a client tells of itself: to the brokers that ask for it (KIP-714), and at a port."""
