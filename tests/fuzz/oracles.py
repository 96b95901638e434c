"""What do Python's tarfile and GNU tar make of an archive?

Each gives the regular files as (name, bytes) in order, and whether it read to the archive's end
without a complaint. tarfile ends many a damaged archive in silence; here that counts as a refusal.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from typing import Any, NamedTuple

GNU_TAR = shutil.which("tar")


class Reading(NamedTuple):
    """Files, and whether they are all: False where the reader gave up after them."""

    files: list[tuple[str, bytes]]
    is_whole: bool


class _Noting(tarfile.TarInfo):
    """A TarInfo that tells what ended the archive; with negative sizes tarfile may go for ever."""

    end: type[BaseException] | None = None
    headers_left = 0

    name_in_header: str | None = None  # of a type that a slash makes a folder

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Noting:
        cls.headers_left -= 1
        if cls.headers_left < 0:
            raise EOFError
        try:
            info = super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            cls.end = type(error)
            raise
        if info.name_in_header not in {None, info.name.rstrip("/")}:
            raise EOFError  # it goes by the slash of a name that is not the member's
        return info

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> _Noting:
        info = super().frombuf(buf, encoding, errors)
        if buf[257:263] != b"ustar\0" and info.type not in tarfile.GNU_TYPES:
            # It takes bytes for a prefix that only POSIX' header has.
            info.name = buf[:100].split(b"\0", 1)[0].decode(encoding, errors)
        if buf[156] == 0:
            info.name_in_header = info.name.rstrip("/")
        return info


def by_tarfile(data: bytes) -> Reading:
    """As the standard library reads it."""
    kind: Any = type("Noting", (_Noting,), {"headers_left": len(data) // 512 + 1})
    files: list[tuple[str, bytes]] = []
    try:
        with tarfile.TarFile(
            fileobj=io.BytesIO(data), tarinfo=kind, encoding="utf-8", errors="surrogateescape"
        ) as archive:
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # or it looks for each header twice
                if info.issparse() or info.size > len(data):
                    return Reading(files, is_whole=False)  # it would make up to 2^63 zeros
                if info.isreg():
                    file = archive.extractfile(info)
                    assert file is not None
                    files.append((info.name.rstrip("/"), _all(file, info.size)))
    except Exception:  # on odd bytes it raises much
        return Reading(files, is_whole=False)
    ends = (tarfile.EOFHeaderError, tarfile.EmptyHeaderError)  # type: ignore[attr-defined]
    return Reading(files, is_whole=kind.end in ends)


def _all(file: Any, size: int) -> bytes:
    content: bytes = file.read()
    if len(content) != size:
        raise EOFError
    return content


_LINE = re.compile(
    rb"(?P<type>[-C])[-rwxsStT]{9} \S+ +(?P<size>\d+) -?\d+-\d\d-\d\d \d\d:\d\d "
    rb"(?P<name>.*)",
    re.DOTALL,
)
_OTHER = re.compile(rb"[dlhbcpVMD][-rwxsStT]{9} \S+ +(?P<size>\d+)[ ,]")
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_LETTERS = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
    b"a": b"\a",
}


def by_gnu_tar(data: bytes) -> Reading | None:
    """As GNU tar lists and extracts it, to pipes; None where tar is missing or its list unclear."""
    if GNU_TAR is None:
        return None
    done = subprocess.run(
        [
            *(GNU_TAR, "-xvvOPf", "-", "--numeric-owner", "--utc", "--warning=none"),
            *("--quoting-style=escape", "--no-same-owner"),
        ],
        input=data,
        capture_output=True,
        timeout=20,
        env={"LC_ALL": "C"},
        check=False,
    )
    if done.returncode:
        return Reading([], is_whole=False)
    files, position = [], 0
    for line in done.stderr.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            other = _OTHER.match(line)
            # A link's or a device's size is no data to tarfile and POSIX, but to GNU tar it is, and
            # of a device it does not list it.
            is_sized = other is not None and (line[:1] in b"cb" or int(other["size"]))
            if other is None or is_sized:
                return None
            continue
        size = int(match["size"])
        name = _ESCAPE.sub(_unescaped, match["name"]).decode("utf-8", "surrogateescape")
        if name.endswith("/"):
            return None  # to GNU tar a folder, whatever its type
        files.append((name, done.stdout[position : position + size]))
        position += size
    return Reading(files, is_whole=True) if position == len(done.stdout) else None


def _unescaped(match: re.Match[bytes]) -> bytes:
    told = match[1]
    return bytes((int(told, 8) & 0xFF,)) if len(told) == 3 else _LETTERS.get(told, told)
