"""What brokers say to each other, and how it gets there."""
