"""More of the trouble that users reported: C08, D06, D08, G02 and H01; others in test_cases.py."""

from __future__ import annotations

import json
import pickle
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

import shardloader as sl
from shardloader.errors import ShardError
from shardloader.format.index import SampleIndex
from shardloader.format.tar_header import END_OF_ARCHIVE, member_header, padding
from shardloader.reading.patterns import expand
from tests.corpora import dataset_of, each_once, kept_corpus, loader_of, loaders_of, valid_of
from tests.shards import write_shard

CASES = Path(__file__).parent.parent / "cases"
ODD_NAMES = [
    *("p#1.tar", "a b.tar", "c%20d.tar", "[x].tar", "{y}.tar", "u:v.tar", "猫.tar", "a?b.tar"),
    *("s3:x.tar", "*.tar", "~.tar", "$HOME.tar", "-f.tar", "{1..3}.tar", "a::b.tar"),
]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_c08_all_shards_are_dealt_anew_over_the_ranks_in_every_epoch(num_workers):
    loaders = loaders_of(kept_corpus((10,) * 16), 2, batch_size=4, num_workers=num_workers)
    shares = []
    for _ in range(3):
        numbers = [valid_of(loader) for loader in loaders]
        assert each_once(numbers[0] + numbers[1], 160)
        shares.append({number // 10 for number in numbers[0]})
    assert len({tuple(sorted(share)) for share in shares}) == 3


def test_c08_a_window_as_large_as_the_data_takes_each_sample_anywhere():
    """Which tenth of an epoch a sample comes in, over many epochs, does not hang on its place."""
    loader = loader_of(kept_corpus((10,) * 16), batch_size=4)
    epochs = 40
    found: Counter[tuple[int, int]] = Counter()
    for _ in range(epochs):
        found += Counter((number // 16, at // 16) for at, number in enumerate(valid_of(loader)))
    expected = epochs * 16 / 10
    chi_squared = sum(
        (found[tenth, place] - expected) ** 2 / expected
        for tenth in range(10)
        for place in range(10)
    )
    assert chi_squared < 150  # of 81 degrees of freedom: 126 in one of a thousand


def test_d06_a_shard_of_any_name_is_read_from_a_list_and_from_its_folder(tmp_path):
    for at, name in enumerate(ODD_NAMES):
        write_shard(tmp_path / "listed" / name, 2, first=2 * at)
    paths = [str(tmp_path / "listed" / name) for name in ODD_NAMES]
    listed = [sample["__key__"] for sample in dataset_of(paths, shuffle=False)]
    assert listed == [f"{number:06d}" for number in range(2 * len(ODD_NAMES))]
    folder = [sample["__key__"] for sample in dataset_of(tmp_path / "listed", shuffle=False)]
    assert sorted(folder) == listed


def test_d06_braces_are_a_pattern_only_in_a_text_that_is_no_files_name(tmp_path):
    pattern = tmp_path / "{1..2}.tar"
    for name, count in (("1.tar", 2), ("2.tar", 3)):
        write_shard(tmp_path / name, count)
    assert dataset_of(str(pattern)).num_samples == 5
    write_shard(pattern, 7)
    assert dataset_of([str(pattern)]).num_samples == 7
    assert dataset_of(str(pattern)).num_samples == 7


def test_d06_patterns_that_are_joined_add_up_and_do_not_multiply():
    names = expand("x/{000..999}.tar::y/{000..999}.tar")
    assert (len(names), names[0], names[-1]) == (2000, "x/000.tar", "y/999.tar")


@pytest.mark.parametrize(
    ("name", "cause"),
    [("html_error_page", "HTML"), ("xml_error_short", "XML"), ("git_lfs_pointer", "git lfs pull")],
)
def test_d08_an_error_page_among_shards_is_named_with_its_first_bytes_and_its_cause(
    tmp_path, name, cause
):
    write_shard(tmp_path / "000.tar", 3)
    content = (CASES / f"{name}.tar").read_bytes()
    (tmp_path / "001.tar").write_bytes(content)
    with pytest.raises(ShardError) as caught:
        next(iter(dataset_of(tmp_path)))
    assert "001.tar" in str(caught.value)
    assert repr(content.lstrip()[:20])[:-1] in str(caught.value)
    assert cause in str(caught.value)


def test_g02_neither_indexing_nor_reading_many_small_members_takes_memory_with_their_number(
    tmp_path,
):
    members = 60_000
    path = tmp_path / "many.tar"
    with path.open("wb") as file:
        for number in range(members):
            file.write(member_header(f"{number:06d}.bin", 1) + b"x" + bytes(padding(1)))
        file.write(END_OF_ARCHIVE)
    data = memoryview(path.read_bytes())
    tracemalloc.start()
    try:
        index, _ = SampleIndex.build(data, shard="s")
        peak = tracemalloc.get_traced_memory()[1]
        assert peak < 6 << 20  # the index's own arrays, and a batch; 61 MB were scanned
        assert index.num_samples == members
        del index, data
        loader = loader_of([str(path)], batch_size=100, decode_threads=0, shuffle=False)
        at = {}
        for step, batch in enumerate(loader, 1):
            if step in {members // 1000, members // 100}:
                tracemalloc.reset_peak()
                at[step] = tracemalloc.get_traced_memory()[0]
            del batch
    finally:
        tracemalloc.stop()
    first, last = at.values()
    assert last < first + (1 << 20)


def test_h01_a_state_is_as_small_and_as_quick_at_every_step_with_a_large_window():
    counts = (1000,) * 12
    loader = loader_of(
        kept_corpus(counts), batch_size=10, num_workers=2, shuffle=sl.Shuffle(window=10_000)
    )
    sizes, spent = [], []
    for step, _ in enumerate(loader, 1):
        start = time.process_time()
        state = loader.state_dict()
        spent.append(time.process_time() - start)
        sizes.append((len(pickle.dumps(state)), len(json.dumps(state))))
        if step == 1000:
            break
    assert max(max(each) for each in sizes) < 1000
    assert max(sizes)[0] - min(sizes)[0] <= 8  # digits
    assert sorted(spent)[len(spent) // 2] < 0.001
