"""What has an unfinished write done, so that the same command can finish it?

The mark `.shardloader-unfinished` lies in the destination until the manifest is published. Of a
write that can be repeated it is a journal: a line that says what is being written from what, then
a line for each shard, put there *before* the shard gets its final name. So a shard that lies under
a final name is in the journal, and only the last line may be of one that does not yet. A line that
was cut by a crash counts for nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from shardloader.writing.layout import Position
from shardloader.writing.shard_file import FinishedShard

if TYPE_CHECKING:
    from shardloader.writing.place import Place

FORMAT = "shardloader-write"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A shard, and where in the input it ends: all that is needed to go on behind it.

    `refused_bytes` is the size of the list of refused samples by then.
    """

    shard: FinishedShard
    end: Position
    last_key: str
    refused_bytes: int
    num_refused: int
    num_left_out: int

    def to_json(self) -> str:
        """Give the line."""
        document = {
            "shard": asdict(self.shard),
            "end": list(self.end),
            "last_key": self.last_key,
            "refused_bytes": self.refused_bytes,
            "num_refused": self.num_refused,
            "num_left_out": self.num_left_out,
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Read a line."""
        return cls(
            shard=FinishedShard(**document["shard"]),
            end=Position(*document["end"]),
            last_key=document["last_key"],
            refused_bytes=document["refused_bytes"],
            num_refused=document["num_refused"],
            num_left_out=document["num_left_out"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """A journal that was read: what was being written, and the shards."""

    fingerprint: str
    base: str | None
    lines: tuple[Line, ...]


def read_journal(place: Place, name: str) -> Journal | None:
    """Read a mark; None if there is none, or it is that of a write that can't be repeated."""
    data = place.read(name)
    return None if data is None else parse_journal(data)


def parse_journal(data: bytes) -> Journal | None:
    """Read the bytes of a mark, up to the first line that is not whole."""
    whole = data[: data.rfind(b"\n") + 1]
    documents = []
    for text in whole.splitlines():
        try:
            documents.append(json.loads(text))
        except ValueError:
            break
    head = documents[0] if documents else None
    if not isinstance(head, dict) or (head.get("format"), head.get("version")) != (FORMAT, VERSION):
        return None
    try:
        lines = tuple(map(Line.from_json, documents[1:]))
        return Journal(fingerprint=head["fingerprint"], base=head["base"], lines=lines)
    except (KeyError, TypeError):
        return None


class JournalFile:
    """A journal that is being written; every line is safe when `add` returns."""

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self._name = name

    def begin(self, *, fingerprint: str, base: str | None, lines: tuple[Line, ...]) -> None:
        """Write the journal anew with these lines."""
        head = {"format": FORMAT, "version": VERSION, "fingerprint": fingerprint, "base": base}
        texts = [json.dumps(head, separators=(",", ":")), *(line.to_json() for line in lines)]
        self._place.publish(self._name, "".join(f"{text}\n" for text in texts).encode("ascii"))

    def add(self, line: Line) -> None:
        """Append a line."""
        self._place.append(self._name, f"{line.to_json()}\n".encode("ascii"))
