"""How does each loader read the corpus over the link? As its users would, with two workers.

All shuffle, as each can, in windows of about half a shard, and give what `digests_of` makes of a
batch.
A loader's own library is imported in its function. `resume` is what its `save` gave in the middle
of another process's pass.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from benchmarks.link.corpus import digests_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

BUCKET: Final = "corpus"
KEYS: Final = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
REGION: Final = "us-east-1"
SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to read from and to keep what was read, and how.

    endpoint: the server's URL; cache: an empty folder; resume: a state, or None to begin.
    """

    endpoint: str
    cache: Path
    names: tuple[str, ...]  # of the tars
    batch: int
    num_workers: int
    window: int
    resume: Any = None

    @property
    def tar_urls(self) -> list[str]:
        """The tars as a web server has them."""
        return [f"{self.endpoint}/{BUCKET}/tar/{name}" for name in self.names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A loader that stands ready: its batches, and its state after those that were given."""

    batches: Iterable[Mapping[str, Any]]
    save: Callable[[], Any] = field(default=lambda: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """A row of the table.

    resumes: in words, None for not at all; gives: whether what it gives are samples.
    """

    name: str
    opens: Callable[[Place], Opened]
    form: str = "tar"
    packages: tuple[str, ...] = ()
    is_peer: bool = False
    resumes: str | None = None
    gives: bool = True


def _curl(place: Place) -> Opened:
    """All tars to nowhere, four at a time: what the link gives."""

    def batches() -> Iterator[Mapping[str, Any]]:
        each = [word for url in place.tar_urls for word in ("-o", "/dev/null", url)]
        command = ["curl", "-sf", "--parallel", "--parallel-immediate", "--parallel-max", "4"]
        subprocess.run([*command, *each], check=True)  # noqa: S603
        yield {"digests": []}

    return Opened(batches=batches())


def _own(url: str, options: Mapping[str, Any], place: Place) -> Opened:
    import shardloader as sl

    dataset = sl.ShardDataset(
        url,
        seed=SEED,
        shuffle=sl.Shuffle(window=place.window),
        decode=None,
        cache=sl.Cache(place.cache / "shards"),
        storage_options=options,
    )
    loader: Any = sl.ShardLoader(
        dataset, batch_size=place.batch, num_workers=place.num_workers, collate_fn=digests_of
    )
    if place.resume is not None:
        loader.load_state_dict(place.resume)
    return Opened(batches=loader, save=loader.state_dict)


def _own_s3(place: Place) -> Opened:
    secret = KEYS["AWS_SECRET_ACCESS_KEY"]
    options = {"endpoint_url": place.endpoint, "key": KEYS["AWS_ACCESS_KEY_ID"], "secret": secret}
    return _own(f"s3://{BUCKET}/tar", options, place)


def _own_http(place: Place) -> Opened:
    return _own(f"{place.endpoint}/{BUCKET}/tar", {}, place)


def _torch_loader(dataset: Any, place: Place) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset, batch_size=place.batch, num_workers=place.num_workers, collate_fn=digests_of
    )


def _webdataset(place: Place) -> Opened:
    import webdataset as wds

    urls = [f"pipe:curl -sf {url}" for url in place.tar_urls]
    dataset = wds.WebDataset(urls, shardshuffle=len(urls), seed=SEED).shuffle(place.window)
    loader = _torch_loader(dataset, place)
    given = 0

    def batches() -> Iterator[Mapping[str, Any]]:
        nonlocal given
        for batch in islice(loader, place.resume, None):
            given += 1
            yield batch

    return Opened(batches=batches(), save=lambda: given)


def _s3fs(place: Place) -> Opened:
    from torch.utils.data import IterableDataset, get_worker_info

    class Shards(IterableDataset[dict[str, bytes]]):
        """The samples of each tar, as it streams in."""

        def __iter__(self) -> Iterator[dict[str, bytes]]:
            import s3fs

            files = s3fs.S3FileSystem(
                key=KEYS["AWS_ACCESS_KEY_ID"],
                secret=KEYS["AWS_SECRET_ACCESS_KEY"],
                endpoint_url=place.endpoint,
            )
            worker: Any = get_worker_info()
            for name in place.names[worker.id :: worker.num_workers]:
                with files.open(f"s3://{BUCKET}/tar/{name}", "rb") as file:
                    yield from _samples_in(file)

    return Opened(batches=_torch_loader(Shards(), place))


def _samples_in(file: Any) -> Iterator[dict[str, bytes]]:
    sample: dict[str, bytes] = {}
    key = ""
    with tarfile.open(fileobj=file, mode="r|") as tar:
        for member in tar:
            stem, _, extension = member.name.rpartition(".")
            if stem != key and sample:
                yield sample
                sample = {}
            key = stem
            body = tar.extractfile(member) or io.BytesIO()
            sample[extension] = body.read()
    yield sample


def _litdata(place: Place) -> Opened:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # its faster client refuses http:// and takes no option from outside that says otherwise
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
    dataset = StreamingDataset(
        f"s3://{BUCKET}/litdata",
        cache_dir=str(place.cache / "chunks"),
        shuffle=True,
        seed=SEED,
        drop_last=False,
        storage_options={
            "endpoint_url": place.endpoint,
            "aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"],
            "region_name": REGION,
        },
    )
    loader = StreamingDataLoader(
        dataset, batch_size=place.batch, num_workers=place.num_workers, collate_fn=digests_of
    )
    if place.resume is not None:
        loader.load_state_dict(place.resume)
    return Opened(batches=loader, save=loader.state_dict)


def _mds(place: Place) -> Opened:
    from tools.corpora.forms.mds import let_torchvision_import

    let_torchvision_import()
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(
        remote=f"s3://{BUCKET}/mds",
        local=str(place.cache / "mds"),
        shuffle=True,
        shuffle_seed=SEED,
        shuffle_block_size=place.window,
        batch_size=place.batch,
        num_canonical_nodes=1,
    )
    loader: Any = StreamingDataLoader(
        dataset, batch_size=place.batch, num_workers=place.num_workers, collate_fn=digests_of
    )
    if place.resume is not None:
        loader.load_state_dict(place.resume)
    return Opened(batches=loader, save=loader.state_dict)


LIMIT: Final = "curl"
LOADERS: Final[Sequence[Loader]] = (
    Loader(name=LIMIT, opens=_curl, gives=False),
    Loader(
        name="shardloader, S3",
        opens=_own_s3,
        packages=("torch", "s3fs", "aiobotocore"),
        resumes="by its state",
    ),
    Loader(
        name="shardloader, HTTP",
        opens=_own_http,
        packages=("torch", "fsspec", "aiohttp"),
        resumes="by its state",
    ),
    Loader(
        name="webdataset, pipe:curl",
        opens=_webdataset,
        packages=("webdataset", "torch"),
        resumes="by reading again what was read",
    ),
    Loader(name="s3fs alone", opens=_s3fs, packages=("s3fs", "torch")),
    Loader(
        name="LitData",
        opens=_litdata,
        form="litdata",
        packages=("litdata", "obstore", "boto3", "torch"),
        is_peer=True,
        resumes="by its state",
    ),
    Loader(
        name="MDS",
        opens=_mds,
        form="mds",
        packages=("mosaicml-streaming", "boto3", "torch"),
        is_peer=True,
        resumes="by its state",
    ),
)


def find(name: str) -> Loader:
    """The loader of that name."""
    return next(loader for loader in LOADERS if loader.name == name)
