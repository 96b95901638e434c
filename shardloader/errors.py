"""Every error the library raises on purpose, as one tree.

    ShardLoaderError
    |-- UsageError (a ValueError)       you called wrongly: change the call
    |   |-- TopologyError               rank, world size or workers make no sense
    |   |-- CheckpointError             the state does not belong to this loader
    |   |-- AgreementError              ranks that should read together differ, or do not come
    |   |-- StaleIteratorError          this iterator was overtaken by a load or a later iter()
    |   |-- MissingExtraError           a package of an extra is not installed
    |   `-- UnsupportedError (a TypeError)  the object can't do that: the message says what can
    |-- DataError                       the data is broken: look at the file
    |   |-- ShardError                  a shard is no sound tar archive
    |   |-- IndexFileError              a sample index is broken or of another version
    |   |-- ManifestError               a manifest is broken, or does not match its shards
    |   |-- SampleError                 a sample can't be written, found or batched
    |   `-- DecodeError                 a field's bytes are not what its name says
    `-- WorldError                      the world failed: disk, network, another process
        |-- CacheError                  the node's cache can't hold a shard: room, permissions
        `-- StoreError                  a remote store does not answer, or refuses: try again later

A message gives the rule, then the value, then the way out. Every class can be made from its
message alone, so that an error crosses from a worker process to the training loop as itself.
"""

from __future__ import annotations


class ShardLoaderError(Exception):
    """The root of every error that shardloader raises on purpose."""


class UsageError(ShardLoaderError, ValueError):
    """The call was wrong; the message says what to call instead."""


class TopologyError(UsageError):
    """Rank, world size or number of workers make no sense, or only half of them is known."""


class CheckpointError(UsageError):
    """The state is broken, or belongs to another dataset, seed, shuffle or format version."""


class AgreementError(UsageError):
    """Ranks differ in what they read, or one did not come; every rank raises the same."""


class StaleIteratorError(UsageError):
    """The iterator gave batches before the loader's position was changed; make a new one."""


class MissingExtraError(UsageError, ImportError):
    """A package of an optional extra is needed and not installed; the message says which."""


class UnsupportedError(UsageError, TypeError):
    """The object has no such operation, `[i]` or a pickle, where Python asks for a TypeError."""


class DataError(ShardLoaderError):
    """Bytes on disk are not what they should be; the message names the file."""


class ShardError(DataError):
    """A shard is no sound tar archive.

    `kind` is one word of `shardloader.format.notices.ERROR_KINDS` and `offset` the byte at which
    it was noticed; both are for programs, the message says the same in words. An error that comes
    from a DataLoader worker keeps its message only.
    """

    def __init__(
        self, message: str, *, kind: str = "shard_error", offset: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        return (_remake_shard_error, (str(self), self.kind, self.offset))


def _remake_shard_error(message: str, kind: str, offset: int | None) -> ShardError:
    return ShardError(message, kind=kind, offset=offset)


class IndexFileError(DataError):
    """A sample index is broken, or was written in a version that this release can't read."""


class ManifestError(DataError):
    """A manifest is broken, or does not match the shards beside it."""


class SampleError(DataError):
    """A sample can't be written as given, or can't be batched with its neighbours."""


class DecodeError(DataError):
    """A field's bytes can't be decoded as its name says.

    `field` and `offset`, the byte of the shard where its data begins, are for programs; the message
    says them too.
    """

    field: str | None = None
    offset: int | None = None


class WorldError(ShardLoaderError):
    """Something outside failed: a disk, a network, another process."""


class CacheError(WorldError):
    """The node's cache can't take or give a shard's tar; the shard is not to blame."""


class StoreError(WorldError):
    """A remote store does not answer, or refuses to; the shard is not to blame."""
