"""The topic ids that the offsets of a stream belong to: a topic may be recreated.

A topic that was deleted and recreated has another id, whatever its offsets look like. So the ids
that belong to the stream's offsets are kept beside its first offsets, where the reader has a
checkpointLocation; without one they last as long as the query runs. Brokers before Kafka 2.8 have
no ids: a topic without one counts as the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from kbroker.spark.checkpoint import checkpoint_files
from kbroker.spark.first_offsets import FORMAT, first_offsets_name, kept_topics
from kbroker.spark.options.option_values import OptionError, TopicPartition
from kbroker.spark.options.options import ReadOptions
from kbroker.uuids import parse_uuid, uuid_text


class TopicIdFile:
    """``<checkpointLocation>/kbroker/topic-ids-<subscription>.json``; until it exists, the ids kept
    with the first offsets. A query that continues with another subscription has neither: it takes
    over the known ids, from the newer file if two have one.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._files = checkpoint_files(options.checkpoint_location or "")
        self._first = first_offsets_name(options.subscription)
        self._name = self._first.replace("first-offsets", "topic-ids")

    def load(self) -> dict[str, bytes]:
        """Raises OptionError if a file is damaged."""
        for own in (self._name, self._first):
            text = self._files.read(own)
            if text is not None:
                return self._parse(own, text)
        ids: dict[str, bytes] = {}
        for name in self._files.names():
            text = self._files.read(name) if name.endswith(".json") else None
            ids |= {} if text is None else self._parse(name, text)
        if ids:
            self.keep(ids)
        return ids

    def _parse(self, name: str, text: str) -> dict[str, bytes]:
        if not name.startswith("topic-ids-"):
            return kept_topics(text)
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}")
            return {str(topic): parse_uuid(one) for topic, one in document["topics"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OptionError(
                f"{self._files.describe(name)} does not contain topic ids ({error}): restore it, "
                "or start over with another checkpoint"
            ) from error

    def keep(self, ids: Mapping[str, bytes]) -> None:
        """Replace the stored ids."""
        topics = {name: uuid_text(one) for name, one in sorted(ids.items())}
        document = {"format": FORMAT, "topics": topics}
        self._files.replace(self._name, json.dumps(document, indent=1) + "\n")


class StreamTopicIds:
    """The ids that belong to the offsets at which a stream continues.

    INVARIANT: the id of a recreated topic is taken over only once the stream's offsets have gone
    back to that topic's start, and is kept before any of its records is read. A crash in between
    finds the older id, and goes back again.
    """

    def __init__(self, file: TopicIdFile | None) -> None:
        self._file = file
        self._ids = file.load() if file is not None else {}
        self._kept = dict(self._ids)
        # topic -> the id it will have, and the offsets that determine it
        self._back: dict[str, tuple[bytes | None, Mapping[TopicPartition, int]]] = {}

    def known(self) -> dict[str, bytes]:
        """The ids, by name."""
        return dict(self._ids)

    def anew(self, now: Mapping[str, bytes]) -> set[str]:
        """Topics of another id than that of the stream's offsets."""
        return {name for name, one in now.items() if self._ids.get(name, one) != one}

    def arrive(self, starts: Mapping[TopicPartition, int]) -> None:
        """The stream has reached these offsets; maybe where it was to switch to a new topic."""
        for topic, (one, ends) in list(self._back.items()):
            if all(starts.get(key) == at for key, at in ends.items()):
                del self._back[topic]
                if one is not None:
                    self._ids[topic] = one

    def go_back(self, topic: str, one: bytes | None, ends: Mapping[TopicPartition, int]) -> None:
        """From these offsets on, the stream reads the topic with that id."""
        self._back[topic] = one, dict(ends)

    def learn(self, now: Mapping[str, bytes], topics: Iterable[str]) -> None:
        """Take ids of topics that were unknown, forget others than ``topics``, keep all."""
        present = set(topics)
        for name, one in now.items():
            if name not in self._back:
                self._ids.setdefault(name, one)
        self._ids = {name: one for name, one in self._ids.items() if name in present}
        if self._file is not None and self._ids != self._kept:
            self._file.keep(self._ids)
            self._kept = dict(self._ids)
