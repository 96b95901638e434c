"""`shardloader info`: what does a dataset hold, as far as manifest and indexes tell?

It changes nothing: where there is no manifest and indexes are missing, it says so instead of
making them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardloader.cli import report
from shardloader.cli.sources import (
    add_dataset,
    one_dataset,
)
from shardloader.errors import IndexFileError, WorldError
from shardloader.format.damage import UNREADABLE
from shardloader.format.foreign import packing_of
from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.planning.spread import Spread
from shardloader.reading.catalog import MAX_CHECKED_SHARDS, Catalog, check
from shardloader.reading.entry import Entry
from shardloader.reading.indexing import (
    index_at,
    joined,
    manifest_of_indexes,
    no_manifest,
    read_manifest,
)
from shardloader.reading.remote_source import place_of
from shardloader.reading.source import find_shards, is_unfinished

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from shardloader.format.index import SampleIndex
    from shardloader.format.manifest import Manifest
    from shardloader.reading.source import Source

EPILOG = """\
Nothing is changed: where indexes are missing, it names the command that makes them. Fields and
example keys are taken from the first indexes, and it says from how many. Exit code 1 where a shard
that the manifest lists is gone or has another size. Of a remote dataset manifest and indexes are
told; its shards are not looked for (`shardloader verify` does).

example:
  shardloader info corpus/
  shardloader info corpus/ --json
"""

NUM_LOOKED_INTO = 8
NUM_KEYS = 3
_UNFINISHED = "a writer was broken off here, or still writes: the same `shardloader write` ends it"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldUse:
    """How samples use a field: in how many it is, and the sizes of its members in bytes."""

    name: str
    num_samples: int
    least: int
    mean: float
    most: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `info`."""
    add_dataset(parser)


def run(options: argparse.Namespace) -> int:
    """Say what is there."""
    place = place_of(
        one_dataset(options.source),
        index_dir=options.index_dir,
        storage_options=options.storage_options,
    )
    if place.store is not None:
        return _tell(_about_remote(place), as_json=options.json)
    manifest = read_manifest(place)
    on_disk = manifest is not None
    num_different = 0
    if manifest is not None and manifest.num_shards <= MAX_CHECKED_SHARDS:
        num_different = check(Catalog(manifest=manifest, source=place), keep_damaged=True)
    names = _names(place, manifest)
    indexed = _indexed(place, names)
    if manifest is None and len(indexed) == len(names):
        manifest = _manifest_of_indexes(place, names)
    document = _about(place, names, manifest, has_manifest=on_disk)
    document["unfinished"] = not on_disk and place.names is None and is_unfinished(place.root)
    document["indexes"] = len(indexed)
    document["compression"] = _packings(place, names[:MAX_CHECKED_SHARDS])
    document |= _looked_into(place, indexed[:NUM_LOOKED_INTO])
    _tell(document, as_json=options.json)
    return int(num_different > 0)


def _tell(document: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        report.print_json(document)
    else:
        _print(document)
    return 0


def _about_remote(place: Source) -> dict[str, Any]:
    """What manifest and indexes tell of a remote dataset; no shard is asked for but a few."""
    manifest = read_manifest(place) if place.names is None else manifest_of_indexes(place)
    if manifest is None:
        raise no_manifest(place)
    document = _about(place, manifest.names, manifest, has_manifest=place.names is None)
    document["unfinished"] = False
    document["indexes"] = None if place.names is None else manifest.num_shards
    looked_into = manifest.names[:NUM_LOOKED_INTO]
    document["compression"] = _packings(place, looked_into)
    return document | _looked_into(place, looked_into)


def field_uses(indexes: Iterable[SampleIndex]) -> list[FieldUse]:
    """Give how the samples of some indexes use each field, in the order of the fields' names."""
    sizes: dict[str, list[Any]] = {}
    for index in indexes:
        for at, name in enumerate(index.fields):
            sizes.setdefault(name, []).append(index.member_sizes[index.member_fields == at])
    joined = {name: np.concatenate(parts) for name, parts in sorted(sizes.items())}
    return [
        FieldUse(
            name=name,
            num_samples=len(of_field),
            least=int(of_field.min()),
            mean=round(float(of_field.mean()), 1),
            most=int(of_field.max()),
        )
        for name, of_field in joined.items()
        if len(of_field)
    ]


def _names(place: Source, manifest: Manifest | None) -> tuple[str, ...]:
    if manifest is not None:
        return manifest.names
    return find_shards(place.root) if place.names is None else place.names


def _indexed(place: Source, names: Sequence[str]) -> list[str]:
    """Give the names of the shards that have an index."""
    found = []
    with report.progress(len(names), unit="shard", what="looking") as bar:
        for name in names:
            if Path(place.index_path(name)).is_file():
                found.append(name)
            bar.update()
    return found


def _packings(place: Source, names: Sequence[str]) -> dict[str, int]:
    """How many shards are packed how, by their first bytes; those that can't be read are none."""
    found: Counter[str] = Counter()
    for name in names:
        with suppress(OSError, WorldError):
            found[packing_of(_first_block(place, name)) or "none"] += 1
    return dict(sorted(found.items()))


def _first_block(place: Source, name: str) -> bytes:
    if place.store is not None:
        return place.store.at(name).read(0, BLOCK_BYTES)[:BLOCK_BYTES]
    with Path(place.shard_path(name)).open("rb") as file:
        return file.read(BLOCK_BYTES)


def _index(place: Source, name: str) -> SampleIndex:
    index = index_at(place, name)
    if index is None:
        raise WorldError(
            f"{place.index_path(name)}: the shard's index is not there: make it with "
            "`shardloader index`"
        )
    return index


def _manifest_of_indexes(place: Source, names: tuple[str, ...]) -> Manifest:
    """Join the indexes of shards that have no manifest."""
    entries = {}
    with report.progress(len(names), unit="index", what="reading") as bar:
        for name in names:
            index = _index(place, name)
            if index.damage is None or index.damage.kind != UNREADABLE:
                _check_size(place, name, index)
            entries[name] = Entry.of(index)
            bar.update()
    return joined(names, entries)


def _check_size(place: Source, name: str, index: SampleIndex) -> None:
    shard_bytes = Path(place.shard_path(name)).stat().st_size
    if index.file_bytes != shard_bytes:
        raise IndexFileError(
            f"{place.index_path(name)}: the index is of a shard of {index.file_bytes} bytes, and "
            f"the shard has {shard_bytes}: make it anew with `shardloader index`"
        )


def _about(
    place: Source, names: Sequence[str], manifest: Manifest | None, *, has_manifest: bool
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "source": place.location,
        "folder": place.root,
        "manifest": place.manifest_path if has_manifest else None,
        "shards": len(names),
        "samples": None,
        "bytes": None,
        "digest": None,
        "samples_a_shard": None,
        "bytes_a_shard": None,
        "damaged": None,
    }
    if manifest is None:
        document["bytes"] = sum(Path(place.shard_path(name)).stat().st_size for name in names)
        return document
    return document | {
        "samples": manifest.num_samples,
        "bytes": int(manifest.sizes.sum()),
        "digest": manifest.digest,
        "samples_a_shard": _spread(manifest.counts),
        "bytes_a_shard": _spread(manifest.sizes),
        "damaged": [
            {"shard": manifest.names[number], "kind": damage.kind, "offset": damage.offset}
            for number, damage in manifest.damage
        ],
    }


def _spread(values: NDArray[np.int64]) -> dict[str, Any]:
    distinct, times = np.unique(values, return_counts=True)
    return Spread.of(zip(distinct.tolist(), times.tolist(), strict=True)).to_json()


def _looked_into(place: Source, names: Sequence[str]) -> dict[str, Any]:
    """Give fields and example keys of a few shards."""
    indexes = [_index(place, name) for name in names]
    keys = (index.key(sample) for index in indexes for sample in range(index.num_samples))
    return {
        "looked_into": {
            "indexes": len(indexes),
            "samples": sum(index.num_samples for index in indexes),
        },
        "fields": [
            {
                "field": use.name,
                "samples": use.num_samples,
                "bytes": {"least": use.least, "mean": use.mean, "most": use.most},
            }
            for use in field_uses(indexes)
        ],
        "example_keys": list(islice(keys, NUM_KEYS)),
    }


def _print(document: dict[str, Any]) -> None:
    counted = document["samples"] is not None
    unknown = "not known before `shardloader index`"
    report.print_facts(
        (
            ("dataset", report.printable(document["source"])),
            ("shards", report.number(document["shards"])),
            ("samples", report.number(document["samples"]) if counted else unknown),
            ("bytes", report.size(document["bytes"])),
            ("digest", document["digest"] or unknown),
            ("samples a shard", _told(document["samples_a_shard"], report.number) or unknown),
            ("bytes a shard", _told(document["bytes_a_shard"], report.size) or unknown),
            ("compression", _packed(document["compression"])),
            ("manifest", report.printable(document["manifest"] or "none")),
            *([("unfinished", _UNFINISHED)] if document["unfinished"] else []),
            *_present(document),
            *([("damaged", _damaged(document["damaged"]))] if document["damaged"] else []),
            ("example keys", ", ".join(map(report.printable, document["example_keys"])) or "none"),
        )
    )
    looked = document["looked_into"]
    if looked["indexes"]:
        whence = "index" if looked["indexes"] == 1 else f"{looked['indexes']} indexes"
        report.print_line(
            f"fields, from the first {whence} ({report.plural(looked['samples'], 'sample')})"
        )
        rows = [
            [
                report.printable(each["field"]),
                report.number(each["samples"]),
                *(report.size(each["bytes"][name]) for name in ("least", "mean", "most")),
            ]
            for each in document["fields"]
        ]
        report.print_table(["field", "samples", "least", "mean", "most"], rows, indent=2)


def _told(spread: dict[str, Any] | None, shown: Callable[[int], str]) -> str:
    if spread is None:
        return ""
    return ", ".join(f"{which} {shown(spread[which])}" for which in ("least", "median", "most"))


def _packed(shards: dict[str, int]) -> str:
    if set(shards) <= {"none"}:
        return "none"
    return ", ".join(f"{kind} ({report.plural(num, 'shard')})" for kind, num in shards.items())


def _damaged(listed: list[dict[str, Any]]) -> str:
    some = [f"{each['shard']} ({each['kind']} at byte {each['offset']})" for each in listed]
    return (
        f"{report.plural(len(listed), 'shard')}, indexed for on_error='skip' up to the damage: "
        f"{report.some(list(map(report.printable, some[: report.SOME])), len(listed))}"
    )


def _present(document: dict[str, Any]) -> list[tuple[str, str]]:
    if document["indexes"] is None:  # of a remote folder, which is not listed
        return []
    return [("indexes", _of_all(document["indexes"], document["shards"]))]


def _of_all(present: int, shards: int) -> str:
    if present == shards:
        return "all present"
    return f"{present:,} of {shards:,} present: make the others with `shardloader index`"
