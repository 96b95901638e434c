"""Which shards of a remote store does a user's `source` mean, and where do their indexes lie?

A source is the URL of a folder, or of its manifest; a brace pattern of URLs; or a list of URLs of
shards. The store is asked nothing here. Shards of a pattern or a list lie in one store, and are
named relative to the folder that they have in common.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from shardloader.errors import UsageError
from shardloader.format.urls import without_secrets
from shardloader.reading.patterns import expand, is_remote, is_url, local_path
from shardloader.reading.remote import Store
from shardloader.reading.source import MANIFEST_NAME, SHARD_SUFFIXES, Source, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardloader.reading.source import PathText, SourceText

_HTTP: Final = ("http", "https")


def place_of(
    source: SourceText,
    *,
    index_dir: PathText | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Source:
    """Find out what a source means, local or remote.

    Raises UsageError as `resolve` and `resolve_remote` do, and for options of a store without one.
    """
    if is_remote(source):
        return resolve_remote(source, index_dir=index_dir, storage_options=storage_options)
    if storage_options:
        raise UsageError(
            "storage_options= are those of a remote store, and the source is a local one: leave "
            "them out, or give a URL such as 's3://bucket/corpus'"
        )
    return resolve(source, index_dir=index_dir)


def is_folder_url(text: str) -> bool:
    """Whether a text is the URL of a folder, and not of a shard or a pattern.

    >>> is_folder_url("s3://b/c"), is_folder_url("s3://b/{0..9}.tar"), is_folder_url("c")
    (True, False, False)
    """
    folder = text.partition("?")[0]
    return is_url(text) and not folder.endswith(SHARD_SUFFIXES) and len(expand(folder)) == 1


def resolve_remote(
    source: SourceText, *, index_dir: PathText | None, storage_options: Mapping[str, Any] | None
) -> Source:
    """Find out what a source of URLs means; index_dir: a local folder for indexes and manifest.

    Raises UsageError for a list that is none of shards of one store.
    """
    if not isinstance(source, str):
        return _listed(
            [os.fspath(each) for each in source],  # type: ignore[union-attr]
            index_dir,
            storage_options,
            f"a list of {len(source)} shards",  # type: ignore[arg-type]
        )
    shown = without_secrets(source)
    folder, mark, query = source.partition("?")
    urls = expand(folder)
    if len(urls) > 1 or folder.endswith(SHARD_SUFFIXES):
        return _listed([url + mark + query for url in urls], index_dir, storage_options, shown)
    store = Store(urls[0].removesuffix(f"/{MANIFEST_NAME}") + mark + query, storage_options)
    return _source(store, None, index_dir, shown)


def _source(
    store: Store, names: tuple[str, ...] | None, index_dir: PathText | None, location: str
) -> Source:
    local = None if index_dir is None else str(Path(local_path(str(index_dir))).resolve())
    return Source(
        root=store.name,
        index_root=local or store.name,
        names=names,
        location=location,
        store=store,
        index_store=None if local else store,
    )


def _listed(
    urls: Sequence[str],
    index_dir: PathText | None,
    storage_options: Mapping[str, Any] | None,
    location: str,
) -> Source:
    stranger = next((url for url in urls if not is_url(url)), None)
    if stranger is not None:
        raise UsageError(
            "the shards of one dataset lie in one place, all of them URLs or none, and "
            f"{without_secrets(stranger)!r} is no URL in a list or pattern of URLs: give one kind, "
            "and options of a store as storage_options="
        )
    parts = [_parts(url) for url in urls]
    bare = next((url for url, (_, path, _) in zip(urls, parts, strict=True) if not path), None)
    if bare is not None:
        raise UsageError(
            "a shard's URL has a bucket or host and a path, and one of those given has no path: "
            f"{without_secrets(bare)!r}: write it whole"
        )
    other = next((at for at, part in enumerate(parts) if part[::2] != parts[0][::2]), None)
    if other is not None:
        raise UsageError(
            "the shards of one dataset lie in one store, and are read with one query: "
            f"{without_secrets(urls[0])!r} and {without_secrets(urls[other])!r} differ in that: "
            "make datasets of them, or give what lets you read as storage_options="
        )
    place, _, query = parts[0]
    paths = [path for _, path, _ in parts]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])  # noqa: PTH120 - no path
    names = tuple(path[len(folder) :].lstrip("/") for path in paths)
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"a dataset has each shard once; the list has {twice!r} twice")
    if place.partition("://")[0].lower() in _HTTP:
        names = tuple(map(unquote, names))  # a store quotes the names of its files
    store = Store(f"{place}{folder}{query}", storage_options)
    return _source(store, names, index_dir, location)


def _parts(url: str) -> tuple[str, str, str]:
    """A URL's scheme and host, its path, and its query with the mark before it."""
    before, mark, query = url.partition("?")
    scheme, _, rest = before.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", slash + path, mark + query
