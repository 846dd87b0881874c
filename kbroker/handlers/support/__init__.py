"""Code that several handlers share; nothing in here serves a request on its own."""
