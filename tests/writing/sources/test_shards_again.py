"""Existing shards written anew: merged, split, chosen from, and what is wrong with them."""

from __future__ import annotations

import gzip
import tarfile
import tempfile
from functools import partial
from pathlib import Path

import fsspec
import pytest
import webdataset

from shardloader.cli import main
from shardloader.errors import SampleError, UsageError, WorldError
from shardloader.format.findings import KINDS
from shardloader.writing.selection import Selection, keyed_word
from shardloader.writing.sources import tar_files
from shardloader.writing.sources.mapping import parse_choice
from shardloader.writing.sources.opening import kind_of, open_source
from shardloader.writing.sources.tar_files import TarShards
from shardloader.writing.write import write_shards
from tests.shards import sample_members, tar_bytes, write_shard
from tests.writing.reading_back import read_dataset, read_shard


def keys(folder: Path) -> list[str]:
    return [key for key, _ in read_dataset(folder)]


def test_img2datasets_output_is_read_without_its_statistics(tmp_path: Path) -> None:
    for number in range(2):
        write_shard(tmp_path / "in" / f"{number:05d}.tar", 10, first=10 * number)
        (tmp_path / "in" / f"{number:05d}_stats.json").write_text("{}")
        (tmp_path / "in" / f"{number:05d}.parquet").write_bytes(b"")
    written = write_shards(tmp_path / "in", tmp_path / "out", max_samples=7)
    assert written.manifest.counts.tolist() == [7, 7, 6]
    assert {path for path, _ in written.survey.skipped} == {
        f"{number:05d}{end}" for number in range(2) for end in ("_stats.json", ".parquet")
    }


def test_what_webdataset_wrote_is_the_same_without_its_pax_headers(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with webdataset.ShardWriter(str(tmp_path / "in" / "%04d.tar"), maxcount=8, verbose=0) as writer:
        for number in range(20):
            writer.write({"__key__": f"{number:04d}", "txt": f"t{number}", "jpg": b"\xff"})
    before = [s for path in sorted((tmp_path / "in").glob("*.tar")) for s in read_shard(path)]
    write_shards(tmp_path / "in", tmp_path / "out")
    assert read_dataset(tmp_path / "out") == before
    with tarfile.open(tmp_path / "out" / "shard-000000.tar") as archive:
        assert not any(info.pax_headers for info in archive)


def test_datasets_are_merged_in_the_order_given(tmp_path: Path) -> None:
    write_shard(tmp_path / "b" / "x.tar", 2, first=10)
    write_shard(tmp_path / "a" / "x.tar", 2)
    source = open_source([str(tmp_path / "b"), str(tmp_path / "a")])
    write_shards(source, tmp_path / "out")
    assert keys(tmp_path / "out") == ["000010", "000011", "000000", "000001"]


def test_keys_that_come_again_need_the_shards_name_before_them(tmp_path: Path) -> None:
    for name in ("x.tar", "y/x.tar"):
        write_shard(tmp_path / "in" / name, 2)
    with pytest.raises(SampleError, match="written before"):
        write_shards(tmp_path / "in", tmp_path / "out")
    source = TarShards([str(tmp_path / "in")], prefix_keys=True)
    write_shards(source, tmp_path / "out")
    assert keys(tmp_path / "out") == ["x/000000", "x/000001", "y/x/000000", "y/x/000001"]


def test_what_a_shard_is_packed_in_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.0.tar").write_bytes(gzip.compress(tar_bytes(sample_members(2))))
    (tmp_path / "in" / "a.1.tar.gz").write_bytes(tar_bytes(sample_members(2)))
    write_shards(TarShards([str(tmp_path / "in")], prefix_keys=True), tmp_path / "out")
    assert keys(tmp_path / "out") == ["a_0/000000", "a_0/000001", "a_1/000000", "a_1/000001"]


def test_fractions_share_nothing_and_are_all(tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.tar", 200)
    found = []
    for number, fraction in enumerate([(0.0, 0.9), (0.9, 1.0)]):
        written = write_shards(
            tmp_path / "in", tmp_path / str(number), selection=Selection(fraction=fraction)
        )
        found.append(keys(tmp_path / str(number)))
        assert written.num_left_out == 200 - len(found[-1])
    assert sorted(found[0] + found[1]) == [f"{number:06d}" for number in range(200)]
    assert 5 <= len(found[1]) <= 35


@pytest.mark.parametrize("seed", [0, 1])
def test_a_fraction_is_spread_over_the_whole_of_a_shuffle(seed: int) -> None:
    tenth = Selection(fraction=(0.0, 0.1))
    chosen = [key for key in map(str, range(2000)) if tenth.wants(key)]
    upper = [key for key in chosen if keyed_word(key, seed) >= 1 << 63]
    assert 0.3 < len(upper) / len(chosen) < 0.7


def test_samples_are_chosen_by_list_and_by_pattern(tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.tar", 30)
    chosen = Selection(keys=frozenset(["000003", "000029", "none"]))
    write_shards(tmp_path / "in", tmp_path / "1", selection=chosen)
    assert keys(tmp_path / "1") == ["000003", "000029"]
    write_shards(tmp_path / "in", tmp_path / "2", selection=Selection(patterns=("*7", "00001?")))
    assert keys(tmp_path / "2") == ["000007", *(f"{n:06d}" for n in range(10, 20)), "000027"]


def test_fields_are_chosen_and_renamed(tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.tar", 2)
    source = TarShards([str(tmp_path / "in")], choice=parse_choice(None, ["label.cls=cls"]))
    write_shards(source, tmp_path / "out")
    assert read_dataset(tmp_path / "out") == [
        ("000000", {"label.cls": b"0"}),
        ("000001", {"label.cls": b"1"}),
    ]


def test_a_damaged_shard_is_an_error_or_gives_what_is_whole_before(tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.tar", 3)
    (tmp_path / "in" / "b.tar").write_bytes(tar_bytes(sample_members(5))[:2570])
    write_shard(tmp_path / "in" / "c.tar", 3, first=10)
    with pytest.raises(SampleError, match=r"b\.tar: truncated"):
        write_shards(tmp_path / "in", tmp_path / "out")
    written = write_shards(tmp_path / "in", tmp_path / "out", on_error="skip")
    assert keys(tmp_path / "out") == [f"{n:06d}" for n in (0, 1, 2, 10, 11, 12)]
    assert written.num_refused == 1
    told = (tmp_path / "out" / "refused.jsonl").read_text()
    assert "b.tar: truncated" in told
    assert "0 samples are whole before that" in told


@pytest.mark.parametrize("form", ["plain", "gzip", "pieces"])
@pytest.mark.parametrize("damage", ["cut", "header", "noise", "member missing", "field twice"])
def test_what_lies_before_the_damage_is_taken_however_the_shard_is_read(
    tmp_path: Path, monkeypatch, form: str, damage: str
) -> None:
    whole = [(f"{n:02d}.{field}", b"%d" % n) for n in range(9) for field in ("cls", "txt")]
    data = {
        "cut": tar_bytes(whole)[: 6 * 2048 + 1200],
        "header": tar_bytes(whole)[: 6 * 2048] + b"x" * 512 + tar_bytes(whole)[6 * 2048 + 512 :],
        "noise": tar_bytes(whole)[: 6 * 2048] + b"x" * 3000,
        "member missing": tar_bytes(whole)[: 6 * 2048 + 1024],
        "field twice": tar_bytes([*whole[:12], ("06.txt", b""), ("06.TXT", b""), *whole[14:]]),
    }[damage]
    # where a header is damaged nobody knows whether the sample before it ended there
    count = 5 if damage in {"header", "noise"} else 6
    (tmp_path / "in").mkdir()
    name = "a.tgz" if form == "gzip" else "a.tar"
    (tmp_path / "in" / name).write_bytes(gzip.compress(data) if form == "gzip" else data)
    write_shard(tmp_path / "in" / "b.tar", 1, first=100)
    if form == "pieces":
        monkeypatch.setattr(tar_files, "PART_SAMPLES", 2)
    with pytest.raises(SampleError, match=rf"{name}.*{count} samples are whole before that"):
        write_shards(tmp_path / "in", tmp_path / "out")
    written = write_shards(tmp_path / "in", tmp_path / "out", on_error="skip")
    assert keys(tmp_path / "out") == [*(f"{n:02d}" for n in range(count)), "000100"]
    assert written.num_refused == 1
    assert all(
        set(fields) == {"cls", "txt"} for _, fields in read_dataset(tmp_path / "out")[:count]
    )


def test_the_mend_that_verify_names_for_a_cut_shard_mends_it(tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.tar", 3)
    (tmp_path / "in" / "b.tar").write_bytes(tar_bytes(sample_members(9))[:-3000])
    assert main(["verify", str(tmp_path / "in")]) == 1
    assert "shardloader write --on-error skip" in KINDS["truncated"][1]
    mend = ["write", str(tmp_path / "in"), str(tmp_path / "out"), "--prefix-keys"]
    assert main([*mend, "--on-error", "skip"]) == 0
    assert main(["verify", str(tmp_path / "out"), "--decode"]) == 0
    assert len(keys(tmp_path / "out")) == 3 + 7


def test_no_room_to_unpack_a_shard_is_told_of_the_room(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.tgz").write_bytes(gzip.compress(tar_bytes(sample_members(3))))
    full = partial(Path("/dev/full").open, "wb", buffering=0)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(WorldError, match=r"a\.tgz: it is unpacked into a file under .*TMPDIR"):
        write_shards(tmp_path / "a.tgz", tmp_path / "out")


def test_no_folder_for_temporary_files_is_told(tmp_path: Path, monkeypatch) -> None:
    def found_none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    (tmp_path / "a.tgz").write_bytes(gzip.compress(tar_bytes(sample_members(3))))
    monkeypatch.setattr(tempfile, "gettempdir", found_none)
    with pytest.raises(WorldError, match=r"a\.tgz: it is unpacked .* no folder takes one: set TMP"):
        write_shards(tmp_path / "a.tgz", tmp_path / "out")


def test_what_is_odd_about_a_shard_is_logged_once(tmp_path: Path, caplog) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tar").write_bytes(tar_bytes(sample_members(3))[:-1024])
    (tmp_path / "in" / "b.tgz").write_bytes(gzip.compress(tar_bytes([])))
    write_shards(tmp_path / "in", tmp_path / "out")
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        f"{tmp_path}/in/a.tar: no end-of-archive marker: the shard may have been cut short",
        f"{tmp_path}/in/b.tgz: no samples: the archive is empty",
    ]


def test_a_shuffle_is_the_order_of_the_keys_words_whatever_the_form(tmp_path: Path) -> None:
    write_shard(tmp_path / "one" / "a.tar", 50)
    for number in range(5):
        write_shard(tmp_path / "five" / f"{9 - number}.tar", 10, first=10 * number)
    for name in ("one", "five"):
        write_shards(tmp_path / name, tmp_path / f"{name}-out", shuffle=3)
    expected = sorted((f"{n:06d}" for n in range(50)), key=lambda key: keyed_word(key, 3))
    assert keys(tmp_path / "one-out") == expected
    one, five = (
        (tmp_path / f"{name}-out" / "shard-000000.tar").read_bytes() for name in ("one", "five")
    )
    assert one == five
    write_shards(tmp_path / "one", tmp_path / "other-out", shuffle=4)
    assert keys(tmp_path / "other-out") != expected


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["a.tar", "b.tar", "a_stats.json", "a.parquet"], "tar"),
        (["x/a.tar.zst"], "tar"),
        (["a.jsonl", "b.jsonl.zst", "README.md"], "jsonl"),
        (["a.csv", "b.tsv"], "csv"),
        (["a.parquet"], "arrow"),
        (["data.arrow", "state.json", "dataset_info.json"], "arrow"),
        (["a.jpg", "a.json"], "folder"),
        (["a.json"], "folder"),
        (["a.jpg", "a.csv"], "folder"),
        ([".hidden.tar", "a.jpg"], "folder"),
    ],
    ids=repr,
)
def test_a_folders_kind_is_told_from_its_names(tmp_path: Path, names, kind: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert kind_of([str(tmp_path)]) == kind


def test_what_is_not_clear_is_for_the_user_to_say(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    (tmp_path / "b.tar").write_bytes(b"")
    with pytest.raises(UsageError, match="say what it is with kind="):
        kind_of([str(tmp_path)])
    (tmp_path / "c.csv").write_bytes(b"")
    with pytest.raises(UsageError, match="several kinds"):
        kind_of([str(tmp_path / "b.tar"), str(tmp_path / "c.csv")])
    with pytest.raises(UsageError, match="there is no"):
        kind_of([str(tmp_path / "none.csv")])
    for options in ({"kind": "odd"}, {"kind": "tar", "class_map": {}}, {"prefix_keys": True}):
        with pytest.raises(UsageError):
            open_source([str(tmp_path / "c.csv")], **options)


def test_a_store_says_what_it_has_and_what_it_has_not(tmp_path: Path) -> None:
    url = f"memory://{tmp_path}"
    for name in ("none.jsonl", "none"):
        with pytest.raises(UsageError, match="there is nothing to read"):
            write_shards([f"{url}/{name}"], tmp_path / "out")
    with fsspec.open(f"{url}/rows/a.jsonl", "wb") as file:
        file.write(b'{"a": 1}\n')
    for word in (f"{url}/rows", f"{url}/rows/a.jsonl"):
        write_shards([word], tmp_path / "out", overwrite=True)
        assert keys(tmp_path / "out") == ["a/000000000"]
