"""What health is: one list of findings, of which every surface shows a part.

``broker`` looks at one broker, ``cluster`` at all of them; both are pure. ``examine`` asks the
brokers of a cluster for what ``cluster`` needs.
"""
