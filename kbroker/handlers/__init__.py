"""Translates between the wire and the processes that own what is asked for.

A module for an API, or for a few that belong together; ``dispatch`` finds it. ``support`` has what
several of them share.
"""
