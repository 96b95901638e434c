"""Which client of S3 is faster at the work of this package: s3fs, or obstore behind fsspec?

    python -m benchmarks.stores [--rounds 5] [--latency 0.05] [--small] [--json]

The work: whole shards in requests of 16 MiB, each shard by one of four threads; ranges of 256 KiB
by sixteen threads; small files by sixteen threads. Both clients are called as the package calls
them, through fsspec's `cat_file`, with threads that wait. nginx gives the files, which costs next
to nothing; it is asked at loopback speed, and behind a proxy that answers each request 50 ms
later. Each measurement has a process of its own, in which the client is made and has asked once
before the clock starts; the clients take turns, round after round; and what arrived must have one
digest. Told are medians, ratios by rounds, and CPU time of the process. Behind the proxy whole
shards show the proxy's own speed, as far as it is the slowest part.

Last, whether a process that is forked once its parent has a client can read, as workers of a
DataLoader do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardloader.reading.clients import new_client
from shardloader.reading.patience import Patience
from tests.servers.nginx import nginx_path, nginx_server
from tests.servers.processes import ROOT, started

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENTS: Final = ("s3fs", "obstore")
FORK_LIMIT_S: Final = 20
PIECE_BYTES: Final = 16 << 20
RANGE_BYTES: Final = 256 << 10
KEYS: Final = {"key": "testing", "secret": "testing"}


class Size(NamedTuple):
    """How much there is of each kind of work."""

    shards: int
    shard_bytes: int
    ranges: int
    files: int
    file_bytes: int


FULL: Final = Size(4, 96 << 20, 320, 400, 20_000)
SMALL: Final = Size(2, 1 << 20, 8, 8, 2_000)
WORKS: Final = ("shards", "ranges", "files")

# A request: the file, and from where to where; None for all.
Request = tuple[str, int | None, int | None]


def requests_of(work: str, size: Size) -> tuple[list[list[Request]], int]:
    """What each task asks for, one after another, and how many threads take tasks."""
    names = [f"s3://bucket/shard-{number}.tar" for number in range(size.shards)]
    if work == "shards":
        starts = range(0, size.shard_bytes, PIECE_BYTES)
        stops = [min(start + PIECE_BYTES, size.shard_bytes) for start in starts]
        return [[(n, *span) for span in zip(starts, stops, strict=True)] for n in names], 4
    if work == "ranges":
        room = size.shard_bytes - RANGE_BYTES
        spans = [(n * 7_919_333) % room for n in range(size.ranges)]
        return [
            [(names[n % len(names)], start, start + RANGE_BYTES)] for n, start in enumerate(spans)
        ], 16
    return [[(f"s3://bucket/small/{n}.index", None, None)] for n in range(size.files)], 16


def client_of(name: str, endpoint: str) -> Any:
    """A client as its users make it."""
    if name == "s3fs":
        options = {"endpoint_url": endpoint, **KEYS}
        return new_client("s3://bucket", "s3", options, Patience())
    import obstore.fsspec

    make: Any = obstore.fsspec.FsspecStore
    return make(
        "s3",
        endpoint=endpoint,
        access_key_id=KEYS["key"],
        secret_access_key=KEYS["secret"],
        region="us-east-1",
        client_options={"allow_http": True},
        skip_instance_cache=True,
    )


def run_one(name: str, endpoint: str, work: str, size: Size) -> dict[str, Any]:
    """Do one kind of work with one client, here."""
    client = client_of(name, endpoint)
    client.info("s3://bucket/shard-0.tar")
    tasks, num_threads = requests_of(work, size)

    def take(task: list[Request]) -> bytes:
        hasher = blake2b(digest_size=16)
        for path, start, stop in task:
            hasher.update(client.cat_file(path, start=start, end=stop))
        return hasher.digest()

    with ThreadPoolExecutor(num_threads) as pool:
        start, cpu = time.perf_counter(), time.process_time()
        digests = list(pool.map(take, tasks))
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu, "digest": blake2b(b"".join(digests)).hexdigest()}


def reads_after_fork(name: str, endpoint: str) -> bool:
    """Whether a forked process can make a client and read, where its parent has read before."""
    client_of(name, endpoint).cat_file("s3://bucket/small/0.index")
    child = os.fork()
    if child == 0:
        client_of(name, endpoint).cat_file("s3://bucket/small/0.index")
        os._exit(0)
    deadline = time.monotonic() + FORK_LIMIT_S
    while time.monotonic() < deadline:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return status == 0
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def _in_a_process(name: str, endpoint: str, work: str, size: Size) -> Any:
    words = ["--one", name, endpoint, work, json.dumps(size)]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.stores", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)  # noqa: S603
    return json.loads(done.stdout)


def _fill(folder: Path, size: Size) -> None:
    (folder / "bucket" / "small").mkdir(parents=True)
    for number in range(size.shards):
        (folder / "bucket" / f"shard-{number}.tar").write_bytes(os.urandom(size.shard_bytes))
    for number in range(size.files):
        (folder / "bucket" / "small" / f"{number}.index").write_bytes(os.urandom(size.file_bytes))


def report(*, size: Size, rounds: int, latency: float) -> dict[str, Any]:
    """Medians and ratios by place and work; and which client reads after a fork."""
    if nginx_path() is None:
        raise SystemExit("nginx is not installed: apt-get install nginx-light")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="stores-")))
        _fill(folder, size)
        near = stack.enter_context(nginx_server(folder))
        words = ("--to", near, "--latency", str(latency))
        far = stack.enter_context(started(sys.executable, "-m", "tests.servers.proxy", *words))
        places = {"loopback": near, f"{latency * 1000:g} ms": far}
        figures: dict[str, Any] = {
            f"{work}, {place}": _compare(url, work, size, rounds)
            for place, url in places.items()
            for work in WORKS
        }
        figures["after a fork"] = {
            name: _in_a_process(name, near, "fork", size) for name in CLIENTS
        }
    return figures


def _compare(endpoint: str, work: str, size: Size, rounds: int) -> dict[str, Any]:
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in CLIENTS}
    for number in range(rounds):
        for name in CLIENTS if number % 2 else CLIENTS[::-1]:
            taken[name].append(_in_a_process(name, endpoint, work, size))
    digests = {each["digest"] for several in taken.values() for each in several}
    assert len(digests) == 1, "the clients read different bytes"
    figures: dict[str, Any] = {}
    for name, several in taken.items():
        figures[f"{name}, seconds"] = statistics.median(each["seconds"] for each in several)
        figures[f"{name}, CPU seconds"] = statistics.median(each["cpu"] for each in several)
    for what in ("seconds", "cpu"):
        ratios = sorted(_ratios(taken, what))
        figures[f"s3fs / obstore, {what}"] = statistics.median(ratios)
        figures[f"lowest and highest, {what}"] = [ratios[0], ratios[-1]]
    return figures


def _ratios(taken: dict[str, list[dict[str, Any]]], what: str) -> Iterator[float]:
    for one, other in zip(taken["s3fs"], taken["obstore"], strict=True):
        yield one[what] / max(other[what], 1e-9)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="s3fs and obstore on the same work.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds, behind the proxy")
    parser.add_argument("--small", action="store_true", help="a quick look")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, endpoint, work, told = options.one
        size = Size(*json.loads(told))
        does = reads_after_fork(name, endpoint) if work == "fork" else None
        print(json.dumps(run_one(name, endpoint, work, size) if does is None else does))
        return
    figures = report(
        size=SMALL if options.small else FULL, rounds=options.rounds, latency=options.latency
    )
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    for title, values in figures.items():
        print(title)
        for name, value in values.items():
            numbers = value if isinstance(value, list) else [value]
            told = " ".join(str(n) if isinstance(n, bool) else f"{n:.3f}" for n in numbers)
            print(f"  {name:32} {told}")


if __name__ == "__main__":
    main()
