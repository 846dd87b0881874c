"""The parent process.

Makes what is shared, forks the children, restarts them, stops them in order.
"""
