"""Which shards make a dataset, and what identifies it?

A manifest lists the shards in order, column by column: names, sizes, sample counts, index digests.
Its digest over these columns is the dataset's identity, which checkpoints carry. A million shards
are ordinary: everything here works on whole columns. To change what the digest covers, raise
`VERSION`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardloader.errors import ManifestError
from shardloader.format.damage import Damage
from shardloader.format.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = "shardloader-manifest"
VERSION = 1

Int64Array: TypeAlias = NDArray[np.int64]

_DIGEST_CHARS = 32
_WAY_OUT = "make it anew with `shardloader index`"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Manifest:
    """The shards of a dataset, n of them, in order.

    `names` are paths relative to the dataset's folder, with `/` between components; `sizes` the
    bytes of their files, packed as they are, and `counts` their samples, int64 [n]; the digests are
    32 hex digits of xxh3-128. `content_digests` are those of the shards' bytes, where they were
    made; they are not part of `digest`, nor is `damage`: the numbers of the shards that were
    damaged when they were indexed, ascending, and how. Raises ManifestError for
    columns that make no sense.
    """

    names: tuple[str, ...]
    sizes: Int64Array
    counts: Int64Array
    index_digests: tuple[str, ...]
    content_digests: tuple[str, ...] | None = None
    damage: tuple[tuple[int, Damage], ...] = ()
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        columns = [len(self.sizes), len(self.counts), len(self.index_digests)]
        if self.content_digests is not None:
            columns.append(len(self.content_digests))
        if set(columns) != {len(self.names)}:
            raise ManifestError(
                f"the columns of a manifest are equally long; {len(self.names)} names have "
                f"{columns} sizes, counts, index digests (and content digests)"
            )
        _check_names(self.names)
        for name in ("index_digests", "content_digests"):
            _check_digests(getattr(self, name) or (), name)
        for name in ("sizes", "counts"):
            object.__setattr__(self, name, _whole_numbers(getattr(self, name), name))
        _check_damage(self.damage, len(self.names))
        object.__setattr__(self, "digest", _digest(self))

    @property
    def num_shards(self) -> int:
        """How many shards there are."""
        return len(self.names)

    @property
    def num_samples(self) -> int:
        """How many samples all shards hold together."""
        return int(self.counts.sum())

    def to_json_bytes(self) -> bytes:
        """Give the manifest file: ASCII JSON, the same bytes for the same manifest."""
        shards: dict[str, Any] = {
            "names": self.names,
            "sizes": self.sizes.tolist(),
            "samples": self.counts.tolist(),
            "index_digests": self.index_digests,
        }
        if self.content_digests is not None:
            shards["content_digests"] = self.content_digests
        if self.damage:
            shards["damage"] = [[number, *damage.to_list()] for number, damage in self.damage]
        document = {"format": FORMAT, "version": VERSION, "digest": self.digest, "shards": shards}
        return (json.dumps(document, separators=(",", ":")) + "\n").encode("ascii")

    @classmethod
    def from_json_bytes(cls, data: bytes | bytearray | memoryview, *, name: str) -> Self:
        """Read a manifest file, called `name` in messages.

        Raises ManifestError for a file that is damaged, was edited, or has another version.
        """
        document = _document(bytes(data), name)
        columns = _columns(document, name)
        try:
            manifest = cls(**columns)
        except ManifestError as error:
            raise ManifestError(f"{name}: {error}; {_WAY_OUT}") from None
        stored = document.get("digest")
        if stored != manifest.digest:
            raise ManifestError(
                f"{name}: the file was changed or damaged: it says its digest is {stored!r}, and "
                f"its shards have {manifest.digest!r}; {_WAY_OUT}"
            )
        return manifest


def _document(data: bytes, name: str) -> dict[str, Any]:
    try:
        document = strict_json(data)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{name}: a manifest is JSON ({error}); {_WAY_OUT}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ManifestError(
            f'{name}: a manifest is a JSON object with "format": "{FORMAT}"; this is another '
            "file: give another folder, or move the file away and run `shardloader index`"
        )
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise ManifestError(
            f"{name}: this release reads manifests of version {VERSION}, and this one has version "
            f"{version!r}: {_WAY_OUT}, or use the release of shardloader that wrote it"
        )
    return document


def _columns(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Give the constructor's arguments; every column is a list of the right type."""
    shards = document.get("shards")
    if not isinstance(shards, dict):
        raise ManifestError(f'{name}: "shards" should be a JSON object; {_WAY_OUT}')
    columns: dict[str, Any] = {}
    for key, argument, of in (
        ("names", "names", str),
        ("sizes", "sizes", int),
        ("samples", "counts", int),
        ("index_digests", "index_digests", str),
        ("content_digests", "content_digests", str),
    ):
        column = shards.get(key)
        if column is None and key == "content_digests":
            continue
        if not isinstance(column, list) or not set(map(type, column)) <= {of}:
            raise ManifestError(
                f'{name}: "{key}" should be a list of {"texts" if of is str else "whole numbers"};'
                f" {_WAY_OUT}"
            )
        columns[argument] = column if of is int else tuple(column)
    if "damage" in shards:
        columns["damage"] = _damage(shards["damage"], name)
    return columns


def _damage(listed: Any, name: str) -> tuple[tuple[int, Damage], ...]:
    try:
        return tuple((number, Damage.from_list(damage)) for number, *damage in listed)
    except (ValueError, TypeError) as error:
        raise ManifestError(
            f'{name}: "damage" should be a list of shards with kind and offset ({error}); '
            f"{_WAY_OUT}"
        ) from None


def _check_damage(damage: tuple[tuple[int, Damage], ...], num_shards: int) -> None:
    numbers = [-1, *(number for number, _ in damage)]
    if set(map(type, numbers)) != {int} or any(left >= right for left, right in pairwise(numbers)):
        raise ManifestError("damaged shards are listed by their numbers, ascending")
    if numbers[-1] >= num_shards:
        raise ManifestError(f"shard {numbers[-1]} of {num_shards} is said to be damaged")


_SOUND_NAME = re.compile(r"(?!.*://)(?!(?:.*/)?(?:\.\.?)?(?:/|\Z))[^\0\\]+(?<!/)", re.DOTALL)


# What an unsound name shows in a text of names between NULs.
_UNSOUND = (
    *("\0\0", "\0/", "/\0", "//", "://", "\\"),
    *("\0./", "/./", "/.\0", "\0.\0", "\0../", "/../", "/..\0", "\0..\0"),
)


def _check_names(names: tuple[str, ...]) -> None:
    if set(map(type, names)) - {str}:
        raise ManifestError("shard names are texts")
    # A million names are looked at in one text; only where that shows a fault, one by one.
    text = "\0".join(("", *names, ""))
    suspicious = text.count("\0") != len(names) + 1 or any(bad in text for bad in _UNSOUND)
    for name in names if suspicious else ():
        if not _SOUND_NAME.fullmatch(name):
            raise ManifestError(
                "a shard's name is a relative path inside the dataset's folder, with no empty, "
                f"'.' or '..' part, no NUL, no backslash and no URL, not {name!r}"
            )
    if len(set(names)) != len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise ManifestError(f"a manifest lists each shard once, and {twice!r} is there twice")


def _check_digests(digests: Sequence[str], column: str) -> None:
    sound = (
        set(map(type, digests)) <= {str}
        and set(map(len, digests)) <= {_DIGEST_CHARS}
        and re.fullmatch("[0-9a-f]*", "".join(digests))
    )
    if not sound:
        raise ManifestError(f"{column} are {_DIGEST_CHARS} hex digits each")


def _whole_numbers(values: Any, column: str) -> Int64Array:
    """Give a read-only int64 array of numbers from 0 on, whose sum fits int64 as well."""
    numbers = np.asarray(values)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ManifestError(f"{column} are a column of whole numbers below 2^63")
    listed = numbers.tolist()
    if sum(listed) >= 2**63 or min(listed, default=0) < 0:
        raise ManifestError(f"{column} are numbers from 0 on, with a sum below 2^63")
    array = numbers.astype(np.int64)
    array.flags.writeable = False
    return array


def _digest(manifest: Manifest) -> str:
    hasher = xxhash.xxh3_128(f"{FORMAT}-{VERSION}".encode())
    try:
        names = "\0".join(manifest.names).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ManifestError(f"a shard's name can't be written as UTF-8 ({error})") from None
    hasher.update(np.array([len(manifest.names), len(names)], dtype="<i8").tobytes())
    hasher.update(names)
    hasher.update(manifest.sizes.astype("<i8").tobytes())
    hasher.update(manifest.counts.astype("<i8").tobytes())
    hasher.update(bytes.fromhex("".join(manifest.index_digests)))
    digest: str = hasher.hexdigest()
    return digest
