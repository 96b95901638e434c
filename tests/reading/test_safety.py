"""What stands in a shard is data: no key is a path, and checking has bounded memory."""

from __future__ import annotations

import pickle
import subprocess
import sys

from shardloader.format.findings import Finding
from shardloader.format.index import SampleIndex
from shardloader.reading.decode import resolve
from shardloader.reading.shard_check import NUM_FIELDS, undecodable
from tests.shards import tar_bytes

WATCHED = """
import os, sys

def watch(event, arguments):
    if event == "open" or event.startswith(("os.", "shutil.", "subprocess.")):
        os.write(int(sys.argv[2]), (repr(arguments) + "\\n").encode())

import shardloader.cli.index, shardloader.cli.verify, shardloader.cli.info
from shardloader.cli import main
from shardloader.reading.catalog import open_catalog
from shardloader.reading.decode import resolve
from shardloader.reading.pool import ShardPool

sys.addaudithook(watch)
corpus = sys.argv[1]
main(["index", corpus, "--digest"])
main(["verify", corpus, "--decode"])
main(["info", corpus])
catalog = open_catalog(corpus)
table = resolve("default")
with ShardPool(catalog) as pool:
    for sample in range(pool[0].num_samples):
        for field, data in pool[0].fields(sample).items():
            table.decode(field, data)
            pool[0].offset(sample, field)
"""

KEYS = (
    "/srv/shardloader-evil/0",
    "../../shardloader-evil/1",
    "a/../../shardloader-evil/2",
    "..\\..\\shardloader-evil\\3",
    "C:\\shardloader-evil\\4",
    "file:///srv/shardloader-evil/5",
    "$HOME/shardloader-evil/6",
    "~/shardloader-evil/7",
)


def test_a_key_is_never_used_as_a_path(tmp_path):
    members = [(f"{key}.txt", b"text") for key in KEYS]
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.tar").write_bytes(tar_bytes(members))
    log = tmp_path / "opened"
    with log.open("wb") as opened:
        done = subprocess.run(
            [sys.executable, "-c", WATCHED, str(corpus), str(opened.fileno())],
            pass_fds=[opened.fileno()],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "unsafe_path" in done.stdout
    paths = log.read_text()
    assert str(corpus / "a.tar") in paths
    assert "evil" not in paths
    assert {path.name for path in corpus.iterdir() if not path.name.startswith(".")} == {
        "a.tar",
        "a.tar.index",
        "manifest.json",
    }


def test_what_is_told_of_bad_samples_does_not_grow_with_their_number():
    sizes = []
    for count in (1000, 5000):
        data = tar_bytes([(f"{number:06d}.json", b"{") for number in range(count)])
        index, _ = SampleIndex.build(data, shard="s")
        (finding,) = undecodable(memoryview(data), index, resolve("default"), name="s")
        assert finding.times == count
        sizes.append(len(pickle.dumps(finding)))
    assert sizes[0] == sizes[1]


def test_a_field_name_for_every_sample_makes_no_row_for_every_sample():
    data = tar_bytes([(f"a.{number}.json", b"{") for number in range(200)])
    index, _ = SampleIndex.build(data, shard="s")
    findings = list(undecodable(memoryview(data), index, resolve("default"), name="s"))
    assert len(findings) == NUM_FIELDS + 1
    assert sum(finding.times for finding in findings) == 200


def test_a_key_of_a_megabyte_is_told_in_part():
    finding = Finding(kind="undecodable", told="x" * 10**6, place="a" + "k" * 10**6 + "z")
    assert len(finding.told) < 1100
    assert finding.place is not None
    assert (finding.place[0], finding.place[-1]) == ("a", "z")
    assert len(finding.place) < 1100
