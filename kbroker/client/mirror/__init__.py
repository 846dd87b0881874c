"""The mirror maker: copies topics of one or several clusters to another, as Kafka's MirrorMaker 1
does (docs/mirror.md). ``mirror_maker`` is what a caller uses, a ``stream`` is one of its consumers.
"""
