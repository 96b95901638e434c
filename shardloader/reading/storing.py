"""How do files come to lie in a remote store, each of them whole or not at all?

An object store shows an object when all of it has come: it is put under its name, in parts where
it is long. Any other store gets it under a hidden name, and then moves it. What may pass is tried
again, as `remote` does for reading. Knows bytes and names, not what they mean.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from shardloader.errors import StoreError, WorldError
from shardloader.reading.clients import HTTP
from shardloader.reading.faults import MissingFileError, Trouble, trouble_of

if TYPE_CHECKING:
    from pathlib import Path

    from shardloader.reading.remote import RemoteFile, Store

_OBJECTS: Final = frozenset(
    ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "cos", "obs")
)
# What a backend's own defaults would do: hold 500 MB in memory, refuse to replace a file.
_PUTTING: Final[dict[str, dict[str, Any]]] = {
    "S3FileSystem": {"chunksize": 16 << 20, "max_concurrency": 4},
    "AzureBlobFileSystem": {"overwrite": True},
    "GCSFileSystem": {"chunksize": 16 << 20},
}
_OF_GOOGLE: Final = "GCSFileSystem"
_LEAST_PART_BYTES: Final = 5 << 20  # of S3 and gcsfs: what is shorter comes in one piece


def sizes_in(store: Store) -> dict[str, int]:
    """Give the sizes of the files that lie directly in a store's folder, by name.

    A folder that is not there is empty.
    """

    def found(client: Any) -> dict[str, int]:
        client.invalidate_cache()
        try:
            listed = client.ls(store.folder_url, detail=True)
        except FileNotFoundError as error:
            if trouble_of(error) is not Trouble.MISSING:
                raise
            return {}
        return {
            each["name"].rstrip("/").rpartition("/")[2]: int(each.get("size") or 0)
            for each in listed
            if each["type"] != "directory" and not each["name"].endswith("/")
        }

    return store.ask(found, shown=store.name, wanted="list its files")


def may_hold_files(store: Store) -> bool:
    """Whether anything is in a store's folder; True where a store does not tell, as HTTP's."""
    if store.scheme in HTTP:
        return True

    def listed(client: Any) -> list[str]:
        client.invalidate_cache()
        found: list[str] = client.ls(store.folder_url, detail=False)
        return found

    try:
        return bool(store.ask(listed, shown=store.name, wanted="list its files"))
    except MissingFileError:
        return False
    except WorldError:
        return True


def make_folder(store: Store) -> None:
    """Make the folder, where a store has such."""
    if store.scheme not in _OBJECTS:
        store.ask(
            lambda client: client.makedirs(store.folder_url, exist_ok=True),
            shown=store.name,
            wanted="take the file",
        )


def put(file: RemoteFile, data: bytes) -> None:
    """Write a small file, in place of an older one."""
    _put(file, lambda client, url: _pipe(client, url, data), len(data))


def put_file(file: RemoteFile, path: Path) -> None:
    """Write what a local file holds, in place of an older file; memory holds a few parts."""
    size = path.stat().st_size

    def send(client: Any, url: str) -> None:
        kind = type(client).__name__
        if kind == _OF_GOOGLE and size < _LEAST_PART_BYTES:
            _pipe(client, url, path.read_bytes())
        else:
            client.put_file(str(path), url, **_PUTTING.get(kind, {}))

    _put(file, send, size)


def _pipe(client: Any, url: str, data: bytes) -> None:
    """Put bytes; to Google's storage as one part.

    What gcsfs thinks is short it puts between lines of text, where what ends in a carriage return
    may lose it.
    """
    one_part = type(client).__name__ == _OF_GOOGLE and data
    client.pipe_file(url, data, **({"chunksize": len(data)} if one_part else {}))


def put_new(file: RemoteFile, data: bytes) -> bool:
    """Write a small file unless there is one; whether it was written.

    Two that try at once are told apart by a store that has conditional writes (S3, Google's); of
    others both may be told yes, so whoever asks looks again.
    """

    def send(client: Any) -> bool:
        try:
            client.pipe_file(file.url, data, mode="create")
        except FileExistsError:
            return False
        except (TypeError, NotImplementedError):  # a backend that does not know of it
            if client.exists(file.url):
                return False
            client.pipe_file(file.url, data)
        return True

    return file.store.ask(send, shown=file.name, wanted="take the file")


def remove(file: RemoteFile) -> None:
    """Remove a file; does nothing if there is none."""

    def send(client: Any) -> None:
        try:
            _remove(client, file.url)
        except FileNotFoundError as error:
            if trouble_of(error) is not Trouble.MISSING:
                raise

    file.store.ask(send, shown=file.name, wanted="take the file")


def _put(file: RemoteFile, send: Any, size: int) -> None:
    def whole(client: Any) -> int | None:
        if size >= _LEAST_PART_BYTES:
            _end_uploads(client, file.url)
        if file.store.scheme in _OBJECTS:
            send(client, file.url)
        else:
            folder, _, name = file.url.rpartition("/")
            hidden = f"{folder}/.{name}.{secrets.token_hex(4)}.partial"
            try:
                send(client, hidden)
                _move(client, hidden, file.url)
            except BaseException:
                if client.exists(hidden):
                    _remove(client, hidden)
                raise
        found = client.info(file.url).get("size")
        return None if found is None else int(found)

    try:
        found = file.store.ask(whole, shown=file.name, wanted="take the file")
    except WorldError:
        with suppress(WorldError):  # the first error says why; a store may end uploads by itself
            file.store.ask(lambda client: _end_uploads(client, file.url), shown=file.name)
        raise
    if found is not None and found != size:
        raise StoreError(
            f"{file.name}: {size} bytes were written, and the store has {found}: look whether "
            "something else writes there, and start the same command again"
        )


def _end_uploads(client: Any, url: str) -> None:
    """End what failed or was killed: an upload in parts stays open otherwise, and costs money."""
    if type(client).__name__ != "S3FileSystem":
        return
    bucket, key, _ = client.split_path(url)
    found = client.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
    for each in found.get("Uploads", ()):
        if each["Key"] == key:
            upload = {"Bucket": bucket, "Key": key, "UploadId": each["UploadId"]}
            client.call_s3("abort_multipart_upload", **upload)


def _move(client: Any, source: str, target: str) -> None:
    from fsspec import AbstractFileSystem

    if type(client).mv is AbstractFileSystem.mv:  # a copy, of names that it takes for patterns
        client.cp_file(source, target)
        _remove(client, source)
        return
    try:
        client.mv(source, target)
    except FileExistsError:  # of a store that moves over nothing
        _remove(client, target)
        client.mv(source, target)


def _remove(client: Any, url: str) -> None:
    client.rm_file(client._strip_protocol(url))  # noqa: SLF001  # not all backends do it themselves
