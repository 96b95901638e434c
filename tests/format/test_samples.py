"""Where a name is split, and what ends a sample."""

from __future__ import annotations

import pytest

from shardloader.errors import ShardError
from shardloader.format.samples import group, split_name
from shardloader.format.tar import Member, Notices


def members(*names: str, kind: str = "file") -> list[Member]:
    return [Member(name, 1024 * i, 1024 * i + 512, 7, kind) for i, name in enumerate(names)]


def grouped(*names: str) -> list[tuple[str, list[str]]]:
    samples = group(members(*names), shard="s.tar", notices=Notices())
    return [(key, [field for field, _, _ in fields]) for key, fields in samples]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("000.jpg", ("000", "jpg")),
        ("22.0/1.1.png", ("22.0/1", "1.png")),
        ("train.v1.0/set.a/0001.jpg", ("train.v1.0/set.a/0001", "jpg")),
        ("train.v1.0/README", None),
        ("000.Seg.PNG", ("000", "seg.png")),
        ("./000.jpg", ("./000", "jpg")),
        (".hidden", None),
        ("a/.hidden.txt", None),
        ("000.", None),
        ("000", None),
        ("a.b/", None),
        ("__meta__/x.json", None),
        ("__manifest__", None),
        ("__index__.json", ("__index__", "json")),
        ("sub/__meta__.json", ("sub/__meta__", "json")),
        ("___/x.json", ("___/x", "json")),
        ("a\nb.txt", ("a\nb", "txt")),
    ],
)
def test_a_name_is_split_at_the_first_dot_of_its_base_name(name, parts):
    assert split_name(name) == parts


def test_members_that_are_no_fields_do_not_end_a_sample():
    assert grouped("a.txt", "README", "__meta__/x.json", "a.cls", "b.txt") == [
        ("a", ["txt", "cls"]),
        ("b", ["txt"]),
    ]


@pytest.mark.parametrize("second", ["a.txt", "a.TXT"])
def test_a_field_twice_is_an_error_that_names_key_field_and_offset(second):
    with pytest.raises(ShardError, match=r"s\.tar.*'a'.*'txt'.*1024") as caught:
        grouped("a.txt", second)
    assert (caught.value.kind, caught.value.offset) == ("duplicate_field", 1024)


def test_what_interrupts_the_members_holds_the_last_sample_back():
    def interrupted():
        yield from members("a.txt", "b.txt", "b.cls")
        raise ShardError("cut", kind="truncated")

    samples = group(interrupted(), shard="s", notices=Notices())
    assert next(samples)[0] == "a"
    with pytest.raises(ShardError, match="cut"):
        next(samples)


def test_a_key_that_comes_back_is_a_sample_of_its_own_and_noted():
    notices = Notices()
    list(group(members("a.txt", "b.txt", "a.cls"), shard="s", notices=notices))
    kinds = [notice.kind for notice in notices.freeze()]
    assert kinds == ["key_reappears", "non_adjacent_sample", "duplicate_key"]


@pytest.mark.parametrize("name", ["a.seg.png", "a.npy.gz", "a.left.jpg", "a.jpg"])
def test_ordinary_dotted_fields_raise_no_suspicion(name):
    notices = Notices()
    list(group(members(name), shard="s", notices=notices))
    assert notices.freeze() == ()
