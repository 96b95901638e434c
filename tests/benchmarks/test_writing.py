"""The writers are compared with a bare loop that writes the same bytes; no time is judged here."""

from __future__ import annotations

from benchmarks import writing


def test_what_the_writers_are_measured_by_is_what_they_write(tmp_path):
    for name in ("T", "I"):
        samples = writing.corpus(name, 0.001)
        rates = writing.measure(name, 0.001, 1, tmp_path)
        assert set(rates) >= {"bare loop", "ShardWriter", "webdataset"}
        assert min(rates.values()) > 0
        for write in ("bare loop", "ShardWriter"):
            place = tmp_path / name / write
            place.mkdir(parents=True)
            writing.WRITERS[write](samples, place, 10**6)
        (bare,) = (tmp_path / name / "bare loop").glob("*.tar")
        (ours,) = (tmp_path / name / "ShardWriter").glob("*.tar")
        assert bare.read_bytes() == ours.read_bytes()
