"""Which writers are compared, and how is each used? One function a writer, all given the same.

Samples are dicts of a key and of bytes, so that only writing is measured. What a writer needs is
imported in its function: webdataset and MDS live in the peers' virtual environment.
"""

from __future__ import annotations

import io
import tarfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tools.corpora.corpus import Corpus

CORPORA: Final = ("T", "I")
Sample = dict[str, Any]
BLOCK: Final = 512
LEVEL: Final = 3  # of zstd, on every side
MDS_SHARD_BYTES: Final = 1 << 26  # its default
FLOOR: Final = "template loop"
OWN: Final = "shardloader"
OWN_ZSTD: Final = "shardloader zstd"
BARE: Final = "shardloader without digest and index"
ONE_WORKER: Final = "shardloader write, 1 worker"
TWO_WORKERS: Final = "shardloader write, 2 workers"
MDS: Final = "MDS"
MDS_ZSTD: Final = "MDS zstd"
WEBDATASET: Final = "webdataset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one process is to write: samples of a corpus, whose shards lie in `source`, to a folder.

    Writers that copy shards read `source`; all others are given the samples.
    """

    corpus: Corpus
    samples: Sequence[Sample]
    source: Path
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One row of the tables.

    write: does the task; read: gives back what lies in a folder, key by key; share: slow writers
    are given so many times fewer samples; is_peer: whether it lives in the peers' virtual
    environment; of_shards: whether it reads shards; checked: whether what it wrote can be read;
    corpora: what it is measured on.
    """

    name: str
    write: Callable[[Task], None]
    read: Callable[[Path], Iterator[tuple[str, Mapping[str, bytes]]]]
    packages: tuple[str, ...] = ()
    share: int = 1
    is_peer: bool = False
    of_shards: bool = False
    checked: bool = True
    corpora: tuple[str, ...] = CORPORA


def template_loop(task: Task) -> None:
    """Build ustar headers from a template, and nothing else: no digest, index, check or fsync."""
    template = bytearray(BLOCK)
    template[100:124] = b"0000644" + bytes(1) + b"0000000" + bytes(1) + b"0000000" + bytes(1)
    template[136:147] = b"00000000000"
    template[148:156] = b"        "
    template[156:157] = b"0"
    template[257:262] = b"ustar"
    template[263:265] = b"00"
    base = sum(template)
    samples, step = task.samples, task.corpus.shard_samples
    for at in range(0, len(samples), step):
        with (task.folder / f"{at:08d}.tar").open("wb", buffering=1 << 20) as file:
            write = file.write
            for sample in samples[at : at + step]:
                key = sample["__key__"]
                for field, data in sample.items():
                    if field == "__key__":
                        continue
                    name = f"{key}.{field}".encode()
                    digits = b"%011o" % len(data)
                    header = template.copy()
                    header[: len(name)] = name
                    header[124:135] = digits
                    header[148:156] = b"%06o\0 " % (base + sum(name) + sum(digits))
                    write(header)
                    write(data)
                    write(bytes(-len(data) % BLOCK))
            write(bytes(2 * BLOCK))


def by_tarfile(task: Task) -> None:
    """Write with Python's tarfile, in the ustar format."""
    samples, step = task.samples, task.corpus.shard_samples
    for at in range(0, len(samples), step):
        path = task.folder / f"{at:08d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for sample in samples[at : at + step]:
                for field, data in sample.items():
                    if field != "__key__":
                        info = tarfile.TarInfo(f"{sample['__key__']}.{field}")
                        info.size = len(data)
                        archive.addfile(info, io.BytesIO(data))


def by_webdataset(task: Task) -> None:
    """Write with webdataset's ShardWriter."""
    import webdataset

    pattern = str(task.folder / "%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=task.corpus.shard_samples, verbose=0) as writer:
        for sample in task.samples:
            writer.write(sample)


def _by_mds(compression: str | None) -> Callable[[Task], None]:
    def write(task: Task) -> None:
        from tools.corpora.forms.mds import let_torchvision_import

        let_torchvision_import()
        from streaming import MDSWriter

        columns = {"__key__": "str", **dict.fromkeys(task.corpus.fields, "bytes")}
        options = {"compression": compression, "size_limit": MDS_SHARD_BYTES}
        with MDSWriter(out=str(task.folder), columns=columns, **options) as writer:
            for sample in task.samples:
                writer.write(sample)

    return write


def _own(**options: Any) -> Callable[[Task], None]:
    def write(task: Task) -> None:
        from shardloader import ShardWriter

        step = task.corpus.shard_samples
        with ShardWriter(task.folder, max_samples=step, max_bytes="4GB", **options) as writer:
            for sample in task.samples:
                writer.write(sample)

    return write


def _without_digest_and_index(task: Task) -> None:
    with _no_digest_and_index():
        _own()(task)


@contextmanager
def _no_digest_and_index() -> Iterator[None]:
    """Take out what makes the digest and the index, to see what they cost."""
    from shardloader.format.index import SampleIndex
    from shardloader.writing import shard_file, waiting
    from shardloader.writing.contents import Contents

    empty, _ = SampleIndex.build(bytes(2 * BLOCK), shard="none")
    with ExitStack() as stack:
        for owner, name, value in (
            (shard_file._Output, "_update", lambda _, __, ___: None),  # noqa: SLF001
            (waiting, "outline_alike", lambda _, __: None),
            (waiting, "outline_of", lambda _: None),
            (Contents, "add", lambda _, __: None),
            (Contents, "index", lambda _: empty),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def _command(workers: int) -> Callable[[Task], None]:
    def write(task: Task) -> None:
        from shardloader.cli import main

        options = ["--from", "tar", "--workers", str(workers), "--max-bytes", "4GB", "--json"]
        options += ["--max-samples", str(task.corpus.shard_samples)]
        code = main(["write", str(task.source), str(task.folder), *options])
        if code:
            raise RuntimeError(f"shardloader write ended with {code}")

    return write


def _read_tars(folder: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """What tarfile finds in the shards, unpacked by zstd where they are packed."""
    for path in sorted(folder.glob("*.tar*")):
        if path.suffix not in {".tar", ".zst"}:
            continue
        data = path.read_bytes()
        if path.suffix == ".zst":
            import zstandard

            unpacked = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
            data = unpacked.read()
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            key, fields = "", dict[str, bytes]()
            for member in archive:
                file = archive.extractfile(member)
                at, _, field = member.name.partition(".")
                if at != key and fields:
                    yield key, fields
                    fields = {}
                key = at
                fields[field] = file.read() if file else b""
            if fields:
                yield key, fields


def _read_mds(folder: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    from tools.corpora.forms.mds import let_torchvision_import

    let_torchvision_import()
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    for sample in StreamingDataset(local=str(folder), shuffle=False, batch_size=1):
        yield sample.pop("__key__"), sample


def _of_peer(name: str, write: Callable[[Task], None], **more: Any) -> Writer:
    read, packages = _read_mds, ("mosaicml-streaming", "torch")
    return Writer(name=name, write=write, read=read, packages=packages, is_peer=True, **more)


_OWN_PACKAGES: Final = ("shardloader", "numpy", "xxhash")
_T: Final = ("T",)

# Those that are compared with each other stand beside each other, so that they are measured so.
WRITERS: Final = (
    Writer(name="tarfile", write=by_tarfile, read=_read_tars, share=4),
    Writer(
        name=WEBDATASET,
        write=by_webdataset,
        read=_read_tars,
        packages=("webdataset",),
        share=4,
        is_peer=True,
    ),
    _of_peer(MDS, _by_mds(None)),
    Writer(name=FLOOR, write=template_loop, read=_read_tars),
    Writer(name=OWN, write=_own(), read=_read_tars, packages=_OWN_PACKAGES),
    Writer(name=BARE, write=_without_digest_and_index, read=_read_tars, checked=False),
    _of_peer(MDS_ZSTD, _by_mds(f"zstd:{LEVEL}"), share=4, corpora=_T),
    Writer(
        name=OWN_ZSTD,
        write=_own(compression="zstd", compression_level=LEVEL),
        read=_read_tars,
        packages=_OWN_PACKAGES,
        share=4,
        corpora=_T,
    ),
    *(
        Writer(name=name, write=_command(workers), read=_read_tars, of_shards=True, corpora=_T)
        for name, workers in ((ONE_WORKER, 1), (TWO_WORKERS, 2))
    ),
)


def find(name: str) -> Writer:
    """The writer of that name."""
    return next(writer for writer in WRITERS if writer.name == name)
