"""Which members lie in a tar archive, and where?

`scan` walks the headers of a buffer and yields each member's name and place; data is never
touched, so nothing that a header declares is ever allocated. It reads v7, ustar, GNU (long names,
base-256 numbers, volume labels) and PAX (local and global) archives, and knows no files.

An ordinary ustar header takes a short way (`_plain_file`); everything else, and everything that is
not sound, takes the long one, which alone makes messages. A test holds that both agree.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import adler32

from shardloader.errors import ShardError
from shardloader.format import tar_fields
from shardloader.format.foreign import empty_file, not_a_tar, too_short
from shardloader.format.notices import (
    ERROR_KINDS,
    LINT_KINDS,
    NOTICE_KINDS,
    WARNING_KINDS,
    Notice,
    Notices,
)
from shardloader.format.tar_fields import FieldError, changes_a_member
from shardloader.format.tar_header import BLOCK_BYTES, padding

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ERROR_KINDS",
    "LINT_KINDS",
    "NOTICE_KINDS",
    "WARNING_KINDS",
    "Member",
    "Notice",
    "Notices",
    "scan",
]

_MAX_EXTENSION_BYTES = 1 << 20  # of a long name or a PAX header; real ones have a few hundred
_ZERO_BLOCK = bytes(BLOCK_BYTES)
_CHUNK_BYTES = 1 << 20

_FILE_TYPES = frozenset((0, ord("0"), ord("7")))  # 7 is a contiguous file
_DATALESS_TYPES = frozenset(b"123456")  # links, devices, folders, fifos: any size is no data
_PAX_TYPES = frozenset(b"xX")  # X is Solaris' older letter
_LABEL_TYPE = ord("V")
_UNSUPPORTED_TYPES = {
    ord("S"): "a sparse file (old GNU format)",
    ord("M"): "the rest of a file of another volume (GNU multi-volume)",
}


class Member(NamedTuple):
    """One member of an archive; a tuple, which is made four times as fast as a dataclass.

    `kind` is "file", "directory" or "special" (links, devices and what else is not followed). The
    header, with any extension headers before it, begins at byte `header_offset`, the data at
    `data_offset`.
    """

    name: str
    header_offset: int
    data_offset: int
    size: int
    kind: str


def scan(
    buffer: bytes | bytearray | memoryview, *, shard: str, notices: Notices | None = None
) -> Iterator[Member]:
    """Yield the members of the tar archive in `buffer`, in order.

    `shard` names it in messages; what is odd without being an error is added to `notices`. Raises
    ShardError, with one of `ERROR_KINDS` and the byte offset, at the first header that is damaged
    or announces more than there is; the members before it have been yielded.
    """
    view = memoryview(buffer).cast("B")
    return _Scanner(view, shard, Notices() if notices is None else notices).members()


_PLAIN = struct.Struct("100s24x12s12x8sc100x8s80xB")
_PLAIN_MAGICS = frozenset((b"ustar" + bytes(1) + b"00", b"ustar  " + bytes(1)))  # POSIX, GNU


def _plain_file(block: bytes) -> tuple[bytes, int] | None:
    """Read an ordinary ustar file header; None for whatever is not exactly that."""
    name, size, checksum, typeflag, magic, prefix = _PLAIN.unpack_from(block)
    if prefix or typeflag != b"0" or magic not in _PLAIN_MAGICS:
        return None
    octal_size, octal_sum = size.rstrip(b"\0 "), checksum.rstrip(b"\0 ")
    if not (octal_size.isdigit() and octal_sum.isdigit()):
        return None
    # Adler-32's lower half is 1 plus the sum of the bytes, modulo 65521; the field counts as spaces
    summed = (adler32(block) & 0xFFFF) - (adler32(checksum) & 0xFFFF) + 8 * 32
    try:
        if (int(octal_sum, 8) - summed) % 65521:
            return None
        return name, int(octal_size, 8)
    except ValueError:
        return None


class _Header(NamedTuple):
    name: bytes
    size: int
    typeflag: int


class _Overrides:
    """What extension headers say about the member that follows, and about all that do."""

    def __init__(self) -> None:
        self.everywhere: dict[str, bytes] = {}
        self.pax: dict[str, bytes] = {}
        self.has_pax = False
        self.gnu_name: bytes | None = None
        self.start: int | None = None  # where the first pending extension header lies

    def clear(self) -> None:
        self.pax = {}
        self.has_pax = False
        self.gnu_name = None
        self.start = None

    def add_records(self, records: dict[str, bytes]) -> None:
        """Take a PAX header's; of two, readers join what they say, or believe one of them."""
        said = (*self.pax, *records, *self.everywhere)
        changing = [word for word in said if changes_a_member(word)]
        if self.has_pax and changing:
            raise FieldError(
                f"two PAX headers are of one member, and its {changing[0]} is in doubt"
            )
        self.pax.update(records)
        self.has_pax = True

    def add_gnu_name(self, content: bytes) -> None:
        """Take a GNU header's long name, which a NUL ends; some writers leave that to padding."""
        name, end, _ = content.partition(b"\0")
        if not name or not (end or len(content) % BLOCK_BYTES == 0):
            raise FieldError(f"a GNU long name ends with a NUL, and is not {content[:40]!r}")
        if self.gnu_name is not None:
            raise FieldError("two GNU headers of one member both give its name")
        self.gnu_name = name

    def get(self, keyword: str) -> bytes | None:
        """Give what a record says, the member's own or that of all."""
        return self.pax.get(keyword, self.everywhere.get(keyword))

    @property
    def silent(self) -> bool:
        return self.start is None and not self.everywhere

    @property
    def sparse(self) -> bool:
        keywords = (*self.pax, *self.everywhere)
        return any(keyword.startswith(tar_fields.SPARSE_KEYWORDS) for keyword in keywords)


class _Scanner:
    def __init__(self, view: memoryview, shard: str, notices: Notices) -> None:
        self.view = view
        self.total = len(view)
        self.shard = shard
        self.notices = notices
        self.overrides = _Overrides()

    def members(self) -> Iterator[Member]:
        self._refuse_at_a_glance()
        view, total, overrides = self.view, self.total, self.overrides
        position = 0
        while True:
            block = view[position : position + BLOCK_BYTES].tobytes()
            if (len(block) < BLOCK_BYTES or block[0] == 0) and self._ends(block, position):
                return
            plain = _plain_file(block) if overrides.silent else None
            if plain is None:
                member, position = self._long_way(block, position)
                if member is not None:
                    yield member
                continue
            name, size = plain
            data = position + BLOCK_BYTES
            if size > total - data:
                raise self._cut_in_data(tar_fields.text(name), data, size)
            yield Member(tar_fields.text(name), position, data, size, "file")
            position = data + size + -size % BLOCK_BYTES

    def _refuse_at_a_glance(self) -> None:
        if not self.total:
            raise empty_file(self.shard)
        if self.total < BLOCK_BYTES:
            raise self._not_a_tar(too_short(self.total))

    def _ends(self, block: bytes, position: int) -> bool:
        """Whether the archive ends here: with its marker, without one, or cut inside a header."""
        if block == _ZERO_BLOCK or not block.strip(b"\0"):
            self._check_nothing_pending(position)
            if len(block) < BLOCK_BYTES:
                # the last member's padding may be missing too
                self.notices.add("missing_end_of_archive", min(position, self.total))
            self._look_behind(position + BLOCK_BYTES)
            return True
        if len(block) == BLOCK_BYTES:
            return False  # a header with an empty name, whose name an extension may give
        raise ShardError(
            f"{self.shard}: truncated: a header begins at byte {position} and the file ends "
            f"{len(block)} bytes later, where {BLOCK_BYTES} were expected",
            kind="truncated",
            offset=position,
        )

    def _check_nothing_pending(self, position: int) -> None:
        start = self.overrides.start
        if start is not None:
            raise ShardError(
                f"{self.shard}: truncated: the extension header at byte {start} announces a member "
                f"that should follow at byte {position}, and the archive ends there",
                kind="truncated",
                offset=min(position, self.total),
            )

    def _look_behind(self, position: int) -> None:
        """Note what follows the end-of-archive marker, if that is anything but zeros."""
        while position < self.total:
            chunk = self.view[position : position + _CHUNK_BYTES].tobytes()
            rest = chunk.lstrip(b"\0")
            if rest:
                self.notices.add("data_after_end", position + len(chunk) - len(rest))
                return
            position += _CHUNK_BYTES

    def _long_way(self, block: bytes, position: int) -> tuple[Member | None, int]:
        """Read any header; give its member, or None for an extension, and the next position."""
        header = self._header(block, position)
        if header.typeflag in b"LKgxXV":
            return None, self._take_extension(header, position)
        return self._member(header, position)

    def _header(self, block: bytes, position: int) -> _Header:
        if not tar_fields.checksum_holds(block):
            if position == 0:
                raise self._not_a_tar("its first 512 bytes are no tar header")
            raise self._bad(position, "a tar header was expected, and its checksum does not hold")
        name = block[:100].split(b"\0", 1)[0]
        if block[257:263] == b"ustar\0":
            prefix = block[345:500].split(b"\0", 1)[0]
            if prefix and not name and block[156] == 0:
                raise self._bad(position, "its name is empty, and its prefix is not")
            name = prefix + b"/" + name if prefix else name
        try:
            size = tar_fields.number(block[124:136], "size")
        except FieldError as error:
            raise self._bad(position, f"member {tar_fields.text(name)!r}: {error}") from None
        return _Header(name, size, block[156])

    def _take_extension(self, header: _Header, position: int) -> int:
        data = position + BLOCK_BYTES
        size = header.size
        if size > self.total - data:
            raise self._cut_in_data(tar_fields.text(header.name), data, size)
        if header.typeflag == _LABEL_TYPE and self.overrides.start is None:
            return data + size + padding(size)
        if size > _MAX_EXTENSION_BYTES:
            raise self._bad(
                position, f"an extension header of {size} bytes; at most {_MAX_EXTENSION_BYTES}"
            )
        content = self.view[data : data + size].tobytes()
        behind = self.view[data + size : data + size + padding(size)][:1].tobytes()
        if header.typeflag == ord("L") and b"\0" not in content:
            content += behind
        if header.typeflag in b"gxX" and behind.strip(b"\0"):
            raise self._bad(position, "PAX records go on behind their size, as some readers do")
        try:
            self._apply_extension(header.typeflag, content, position)
        except FieldError as error:
            raise self._bad(position, str(error)) from None
        return data + size + padding(size)

    def _apply_extension(self, typeflag: int, content: bytes, position: int) -> None:
        overrides = self.overrides
        if typeflag == ord("g"):
            records = tar_fields.pax_records(content)
            if "size" in records:
                raise FieldError("a global PAX header can't give the size of every member")
            if "path" in overrides.everywhere:
                raise FieldError("a global PAX header follows one that names every member")
            overrides.everywhere.update(records)
            return
        if overrides.start is None:
            overrides.start = position
        if typeflag in _PAX_TYPES:
            overrides.add_records(tar_fields.pax_records(content))
        elif typeflag == ord("L"):
            overrides.add_gnu_name(content)
        elif typeflag == _LABEL_TYPE:
            raise FieldError("a volume label follows an extension header that announces a member")

    def _member(self, header: _Header, position: int) -> tuple[Member, int]:
        overrides = self.overrides
        name, size = self._overridden(header, position)
        unsupported = _UNSUPPORTED_TYPES.get(header.typeflag)
        if overrides.sparse:
            unsupported = "a sparse file (PAX format)"
        if unsupported:
            raise ShardError(
                f"{self.shard}: the member {name!r} at byte {position} is {unsupported}, which "
                "this release does not read; write the shard anew without it",
                kind="unsupported_member",
                offset=position,
            )
        kind = _kind(header.typeflag, name)
        if header.typeflag in _DATALESS_TYPES or kind == "directory":
            size = 0
        data = position + BLOCK_BYTES
        if size > self.total - data:
            raise self._cut_in_data(name, data, size)
        start = position if overrides.start is None else overrides.start
        overrides.clear()
        return Member(name, start, data, size, kind), data + size + padding(size)

    def _overridden(self, header: _Header, position: int) -> tuple[str, int]:
        overrides = self.overrides
        path, size = overrides.get("path"), overrides.get("size")
        name = path or overrides.gnu_name or header.name
        if path and overrides.gnu_name:
            raise self._bad(position, "a PAX header and a GNU header both give its name")
        try:
            return tar_fields.text(name), header.size if size is None else tar_fields.pax_size(size)
        except FieldError as error:
            raise self._bad(position, f"member {tar_fields.text(name)!r}: {error}") from None

    def _cut_in_data(self, name: str, data: int, size: int) -> ShardError:
        return ShardError(
            f"{self.shard}: truncated: the member {name!r} declares {size} bytes from byte {data} "
            f"on, and the file ends after {self.total - data} of them",
            kind="truncated",
            offset=data,
        )

    def _bad(self, position: int, problem: str) -> ShardError:
        return ShardError(
            f"{self.shard}: bad header at byte {position}: {problem}; the shard is damaged, and "
            "what follows can't be found: fetch or write it anew",
            kind="bad_header",
            offset=position,
        )

    def _not_a_tar(self, problem: str) -> ShardError:
        return not_a_tar(self.view[:BLOCK_BYTES].tobytes(), problem, shard=self.shard)


def _kind(typeflag: int, name: str) -> str:
    # A v7 header has no type for a directory, only a trailing slash.
    if typeflag == ord("5") or (typeflag == 0 and name.endswith("/")):
        return "directory"
    return "file" if typeflag in _FILE_TYPES else "special"
