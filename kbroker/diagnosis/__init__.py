"""Asks the brokers of a cluster what is wrong with it, as any client may."""
