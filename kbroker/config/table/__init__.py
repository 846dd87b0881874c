"""The broker's settings, a module for each field of work; ``broker_keys`` joins them."""
