"""Decides about topics, configs and slots: state in, decisions out. The shell is in ``workers``."""
