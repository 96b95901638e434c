"""How are lines of JSON read as samples?

A `.jsonl` file is cut at line ends into pieces that any worker may read; a compressed one (`.zst`,
`.gz`) is read by one worker from its start. A row's key is a column of it, or the file's name and
the line's number from 0. Without chosen fields the whole line becomes the field `json`, byte for
byte. Blank lines are no samples. A line that is no JSON object is refused with its number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from shardloader.format.unpacking import unpacked_pieces
from shardloader.writing.sources.base import PART_BYTES, Part, Refused, unwritable
from shardloader.writing.sources.files import FileSource, InputFile, opened, pieces_of, suffix_of
from shardloader.writing.sources.mapping import TwoSourcesError, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardloader.writing.sources.base import Sample

PLAIN = (".jsonl", ".ndjson")
COMPRESSED = (".jsonl.zst", ".jsonl.gz", ".ndjson.zst", ".ndjson.gz")
SUFFIXES = (*PLAIN, *COMPRESSED)
_BOM = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 20
_decode = msgspec.json.Decoder().decode


class _Lines(NamedTuple):
    """Bytes `start` to `stop` of a file: whole lines, the first of them with number `line`."""

    file: int
    start: int
    stop: int | None
    line: int


class JsonLines(FileSource):
    """Files of JSON objects, one a line."""

    kind = "jsonl"
    suffixes = SUFFIXES

    def parts(self) -> Iterator[Part]:
        """Cut the files at ends of lines, counting the lines on the way."""
        number = 0
        for at, file in enumerate(self._files):
            if suffix_of(file.name, COMPRESSED):
                yield Part(number, file.size, _Lines(at, 0, None, 0))
                number += 1
                continue
            for piece in _cut(file, at):
                yield Part(number, (piece.stop or 0) - piece.start, piece)
                number += 1

    def read(self, part: Part, *, outline: bool = False) -> Iterator[Sample | Refused]:
        """Yield a sample for each line."""
        del outline  # what a line becomes is known when it is read
        what: _Lines = part.what
        file = self._files[what.file]
        pieces: Iterable[bytes | memoryview]
        if what.stop is None:
            pieces = unpacked_pieces(pieces_of(file), name=file.shown)
        else:
            pieces = _between(file, what.start, what.stop)
        for number, line in enumerate(_lines(pieces), start=what.line):
            item = self._item(file, number, line)
            if item is not None:
                yield item

    def _item(self, file: InputFile, number: int, line: bytes) -> Sample | Refused | None:
        text = (line[len(_BOM) :] if number == 0 and line.startswith(_BOM) else line).strip()
        if not text:
            return None
        where = f"{file.shown}, line {number + 1}"
        row = _row(text, where)
        if isinstance(row, Refused):
            return row
        key = f"{file.stem(SUFFIXES)}/{number:09d}"
        if self._choice.key is not None:
            if row.get(self._choice.key) is None:
                return Refused("", where, f"the row has no {self._choice.key!r}, which is the key")
            key = key_of(row[self._choice.key])
        try:
            fields = self._choice.of_row(row) if self._choice.pairs else {"json": text}
        except TwoSourcesError as error:
            return unwritable(key, where, error)
        if not fields:
            wanted = [column for _, column in self._choice.pairs]
            return Refused(
                str(key), where, f"the row has none of the columns {wanted}; it has {list(row)}"
            )
        return {"__key__": key, **fields}


def _row(text: bytes, where: str) -> dict[str, Any] | Refused:
    try:
        row = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Refused("", where, f"the line is not JSON: {error}")
    if not isinstance(row, dict):
        return Refused("", where, f"a row is a JSON object, and this one is {type(row).__name__}")
    return row


def _between(file: InputFile, start: int, stop: int) -> list[bytes]:
    """Read all at once."""
    left, pieces = stop - start, []
    with opened(file) as handle:
        handle.seek(start)
        while left and (piece := handle.read(left)):
            pieces.append(piece)
            left -= len(piece)
    return pieces


def _lines(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the lines of some bytes, without their ends."""
    rest: list[bytes] = []
    for piece in pieces:
        first, *others = bytes(piece).split(b"\n")
        rest.append(first)
        if others:
            yield b"".join(rest)
            yield from others[:-1]
            rest = [others[-1]]
    last = b"".join(rest)
    if last:
        yield last


def _cut(file: InputFile, at: int) -> Iterator[_Lines]:
    """Yield stretches of whole lines; reads the file ahead of those who will parse it."""
    start, line, place, num_lines = 0, 0, 0, 0
    with opened(file) as handle:
        while True:
            block = handle.read(_BLOCK_BYTES)
            if not block:
                break
            cut = block.rfind(b"\n") + 1
            num_lines += block.count(b"\n")
            place += len(block)
            if cut and place - start >= PART_BYTES:
                stop = place - len(block) + cut
                yield _Lines(at, start, stop, line)
                start, line = stop, line + num_lines
                num_lines = 0
    if place > start:
        yield _Lines(at, start, place, line)
