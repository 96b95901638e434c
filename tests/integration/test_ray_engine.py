"""A write as tasks on a real Ray cluster of several nodes, one of which is killed in the middle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardloader.errors import MissingExtraError, SampleError, UsageError
from shardloader.writing.destination import Destination
from shardloader.writing.sources import jsonl_files
from shardloader.writing.sources.jsonl_files import JsonLines
from shardloader.writing.sources.mapping import parse_choice
from shardloader.writing.write import write_shards
from tests.writing.inputs import MAKERS
from tests.writing.reading_back import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardloader.writing.sources.base import Source

ROOT = Path(__file__).parents[2]

# Ray's own sockets and files are left to the garbage collector
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    options: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20}
    quick = {  # to notice that a node is gone
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 300,
        "health_check_timeout_ms": 1000,
        "health_check_failure_threshold": 3,
    }
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**options, "include_dashboard": False, "_system_config": quick},
    )
    cluster.add_node(**options)
    ray.init(
        address=cluster.address,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(jsonl_files, "PART_BYTES", 30_000)
    monkeypatch.setattr(jsonl_files, "_BLOCK_BYTES", 5000)
    rows = [{"id": f"{n:05d}", "text": f"text {n} " * 20} for n in range(2000)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return JsonLines([str(tmp_path / "a.jsonl")], choice=parse_choice("id", ["txt=text"]))


OPTIONS: list[dict[str, Any]] = [
    {"max_samples": 130},
    {"max_samples": 130, "compression": "zstd"},
    {"max_samples": 130, "shuffle": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_a_cluster_writes_the_bytes_of_one_process_also_when_it_loses_a_node(
    cluster: Any, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    write_shards(source, tmp_path / "one", **options)
    doomed = cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
    cluster.wait_for_nodes()
    published: list[str] = []
    publish = Destination.publish_shard

    def publish_and_kill(destination: Any, sealed: Any, line: Any = None, **options: Any) -> None:
        publish(destination, sealed, line, **options)
        published.append(sealed.finished.name)
        if len(published) == 2:
            cluster.remove_node(doomed, allow_graceful=False)

    monkeypatch.setattr(Destination, "publish_shard", publish_and_kill)
    write_shards(source, tmp_path / "many", engine="ray", **options)
    assert len(published) == 16
    assert visible(tmp_path / "many") == visible(tmp_path / "one")
    assert {path.name for path in (tmp_path / "many").iterdir()} == set(visible(tmp_path / "one"))


def test_every_kind_of_source_can_be_sent_to_a_cluster(cluster: Any, tmp_path: Path) -> None:
    for kind in ("folder", "saved", "packed shards", "shards"):
        place = tmp_path / kind
        place.mkdir()
        source = MAKERS[kind](place)
        write_shards(source, tmp_path / f"{kind}-one", max_samples=7)
        write_shards(source, tmp_path / f"{kind}-ray", max_samples=7, engine="ray")
        assert visible(tmp_path / f"{kind}-one") == visible(tmp_path / f"{kind}-ray")


def test_what_a_task_refuses_is_refused_as_here(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\nnot json\n')
    source = JsonLines([str(tmp_path / "a.jsonl")])
    with pytest.raises(SampleError, match=r"a\.jsonl, line 2"):
        write_shards(source, tmp_path / "out", engine="ray")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_engine_that_is_not_there_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    words = [str(tmp_path / "a.jsonl")]
    with pytest.raises(UsageError, match="engine is"):
        write_shards(words, tmp_path / "out", engine="spark")
    with pytest.raises(UsageError, match="address= is that of a Ray cluster"):
        write_shards(words, tmp_path / "out", address="auto")
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'shardloader\[ray\]'"):
        write_shards(words, tmp_path / "out", engine="ray")
