"""The broker's settings, a module for each area; ``broker_keys`` joins them."""
