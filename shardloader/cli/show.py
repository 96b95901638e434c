"""`shardloader show`: what is in a sample? Keys, fields, sizes, and texts and JSON as they read.

`--extract` writes fields to files. A key is data from whoever wrote the shard, so it becomes a path
below the folder asked for, whatever it says: `..`, a leading `/`, a backslash and what no
file name should hold are replaced, and no file that is there is ever written over.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shardloader.cli import report
from shardloader.cli.sources import (
    add_dataset,
    at_least_one,
    field_names,
    one_dataset,
)
from shardloader.errors import DecodeError, UsageError, WorldError
from shardloader.format.foreign import GZIP_MAGIC, ZIP_MAGIC, ZSTD_MAGIC
from shardloader.format.media import media_of
from shardloader.reading.catalog import open_catalog
from shardloader.reading.decode import resolve
from shardloader.reading.pool import ShardPool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardloader.reading.catalog import Catalog

EPILOG = """\
A sample is named by its number in the dataset, from 0, or by its key. Texts and JSON are shown up
to --chars characters, with their number where there are more; of other fields the size, and what
the first bytes say they are.

example:
  shardloader show corpus/
  shardloader show corpus/ --sample 120 --extract found/
  shardloader show corpus/ --key 000012 --json
"""

_TEXTS = frozenset(
    ("txt", "text", "transcript", "json", "jsn", "cls", "cls2", "class", "id", "index", "count")
)
_PACKED: Final = (
    (b"\x93NUMPY", "numpy array"),
    (GZIP_MAGIC, "gzip data"),
    (ZSTD_MAGIC, "zstd data"),
    (ZIP_MAGIC, "zip archive"),
)
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"*:<>?\\|]')
_LONGEST_NAME = 255  # bytes, of what a file may be called


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `show`."""
    add_dataset(parser)
    parser.add_argument("--sample", type=_number, metavar="N", help="begin with this sample")
    parser.add_argument("--key", metavar="KEY", help="show the first sample with this key")
    parser.add_argument(
        "-n",
        "--number",
        type=at_least_one,
        default=1,
        metavar="N",
        help="so many samples (default: 1)",
    )
    parser.add_argument(
        "--fields", metavar="A,B", type=field_names, help="only these fields (default: all)"
    )
    parser.add_argument(
        "--chars", type=at_least_one, default=1000, metavar="N", help="of a text (default: 1000)"
    )
    parser.add_argument("--extract", metavar="DIR", help="also write the fields to files there")


def run(options: argparse.Namespace) -> int:
    """Show what was asked for."""
    catalog = open_catalog(
        one_dataset(options.source),
        index_dir=options.index_dir,
        storage_options=options.storage_options,
    )
    wanted = None if options.fields is None else frozenset(options.fields)
    with ShardPool(catalog, is_glance=True) as pool:
        first = _first(catalog, pool, options)
        stop = min(first + options.number, catalog.manifest.num_samples)
        documents = [_shown(catalog, pool, each, wanted, options) for each in range(first, stop)]
    if options.json:
        report.print_json({"source": catalog.location, "samples": documents})
    else:
        for document in documents:
            _print(document)
    return 0


def safe_path(key: str, field: str) -> str:
    """Return a relative path for a field of a sample; two of them may be given the same.

    >>> safe_path("../../etc/passwd", "txt"), safe_path("/a/b", "jpg"), safe_path("a/./b:c", "x")
    ('_/_/etc/passwd.txt', '_/a/b.jpg', 'a/_/b_c.x')
    """
    name = f"{key}.{field.replace('/', '_')}"
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    parts = [_UNSAFE.sub("_", part) for part in text.split("/")]
    return "/".join("_" if part in {"", ".", ".."} else _cut(part) for part in parts)


def _cut(part: str) -> str:
    """Shorten a name that no file system takes, at its start, since its end says what it is."""
    data = part.encode()
    return part if len(data) <= _LONGEST_NAME else data[-_LONGEST_NAME:].decode("utf-8", "ignore")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number from 0, not {text!r}")
    return int(text)


def _first(catalog: Catalog, pool: ShardPool, options: argparse.Namespace) -> int:
    count = catalog.manifest.num_samples
    if options.key is not None and options.sample is not None:
        raise UsageError("--key and --sample each say where to begin: give one of them")
    if options.key is not None:
        return _of_key(catalog, pool, options.key)
    first: int = options.sample or 0
    if first >= count:
        raise UsageError(f"the dataset has {report.plural(count, 'sample')}, and no sample {first}")
    return first


def _of_key(catalog: Catalog, pool: ShardPool, key: str) -> int:
    """Look through the indexes for a key; gives the number of its sample."""
    data, before = key.encode("utf-8", "surrogateescape"), 0
    with report.progress(catalog.num_shards, unit="shard", what="looking") as bar:
        for shard in range(catalog.num_shards):
            index = pool[shard].index
            starts = index.key_starts
            for sample in np.flatnonzero(np.diff(starts) == len(data)).tolist():
                if index.key_bytes[starts[sample] : starts[sample + 1]].tobytes() == data:
                    return before + sample
            before += index.num_samples
            bar.update()
    raise UsageError(f"no sample of {catalog.location} has the key {key!r}")


def _shown(
    catalog: Catalog,
    pool: ShardPool,
    number: int,
    wanted: frozenset[str] | None,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Describe a sample, and extract it if that was asked for."""
    ends = np.cumsum(catalog.manifest.counts)
    shard = int(np.searchsorted(ends, number, side="right"))
    sample = number - int(ends[shard]) + int(catalog.manifest.counts[shard])
    opened = pool[shard]
    key, found = opened.key(sample), opened.fields(sample, wanted)
    fields = []
    for name, data in found.items():
        described = {"field": name, "bytes": len(data), **_described(name, data, options.chars)}
        if options.extract is not None:
            described["file"] = _extract(Path(options.extract), key, name, data)
        fields.append(described)
    return {
        "sample": number,
        "shard": catalog.manifest.names[shard],
        "place": sample,
        "key": key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"),
        "fields": fields,
    }


def _described(name: str, data: memoryview, chars: int) -> Mapping[str, Any]:
    ending = name.rpartition(".")[2]
    if ending in _TEXTS:
        try:
            text = _text(name, data)
        except (DecodeError, UnicodeDecodeError) as error:
            return {"problem": str(error)}
        cut = {} if len(text) <= chars else {"characters": len(text)}
        return {"text": text[:chars], **cut}
    if ending == "npy":
        try:
            array = resolve("default").decode(name, data)
        except DecodeError as error:
            return {"problem": str(error)}
        return {"kind": f"numpy array, {array.dtype}, {' x '.join(map(str, array.shape))}"}
    media = media_of(data)
    if media is not None:
        return {"kind": f"{media.name} {media.kind}"}
    start = bytes(data[:16])
    return {"kind": next((kind for magic, kind in _PACKED if start.startswith(magic)), "bytes")}


def _text(name: str, data: memoryview) -> str:
    if name.rpartition(".")[2] in {"json", "jsn"}:
        value = resolve("default").decode(name, data)
        return json.dumps(value, ensure_ascii=False, indent=1)
    return bytes(data).decode("utf-8")


def _extract(folder: Path, key: str, field: str, data: memoryview) -> str:
    path = folder / safe_path(key, field)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        raise UsageError(
            f"{path}: is there already, and is not written over: give another folder"
        ) from None
    except OSError as error:
        raise WorldError(f"{path}: can't be written: {error.strerror or error}") from error
    return str(path)


def _print(document: Mapping[str, Any]) -> None:
    facts = (("sample", report.number(document["sample"])), ("key", document["key"]))
    report.print_facts(
        (
            *((name, report.printable(value)) for name, value in facts),
            ("shard", f"{report.printable(document['shard'])}, sample {document['place']}"),
        )
    )
    for each in document["fields"]:
        what = each.get("kind") or each.get("problem") or ""
        report.print_line(
            f"  {report.printable(each['field'])}  {report.size(each['bytes'])}  "
            f"{report.printable(what)}".rstrip()
        )
        for line in each.get("text", "").splitlines():
            report.print_line(f"    {report.printable(line)}")
        if "characters" in each:
            report.print_line(f"    ... of {report.plural(each['characters'], 'character')}")
        if "file" in each:
            report.print_line(f"    written to {report.printable(each['file'])}")
    report.print_line("")
