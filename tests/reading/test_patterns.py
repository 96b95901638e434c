"""Which names a brace pattern stands for: bash is the oracle."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import UsageError
from shardloader.reading import patterns
from shardloader.reading.patterns import expand, local_path


@pytest.mark.parametrize(
    "pattern",
    [
        "x-{000..127}.tar",
        "{a,b}",
        "x{3..1}",
        "x{0..10..3}",
        "{08..10}",
        "{1..010}",
        "{-2..2}",
        "{-02..2}",
        "a{b,c}{1..2}d",
        "a{b,c{1..3}}d",
        "a{,b}c",
        "{a}",
        "a{b",
        "a}b",
        "{{a,b},c}",
        "x{abc}y{1,2}",
        "{}",
        "a{b{1,2}",
        "plain.tar",
    ],
)
def test_patterns_stand_for_what_bash_makes_of_them(pattern):
    shell = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {pattern}"], capture_output=True, text=True, check=True
    )
    assert expand(pattern) == shell.stdout.splitlines()


def test_patterns_that_are_joined_follow_each_other():
    assert expand("a{1..2}::b::c{3,4}") == ["a1", "a2", "b", "c3", "c4"]


@pytest.mark.parametrize(
    "pattern",
    ["{0..999999999999}", "{0..99}{0..99}", "{1..999}::{0..9}", "{{0..99},{0..99}}{0..9}"],
)
def test_too_many_names_are_refused(pattern, monkeypatch):
    monkeypatch.setattr(patterns, "MAX_NAMES", 1000)
    with pytest.raises(UsageError, match="at most 1000 shards"):
        expand(pattern)


def test_as_many_names_as_may_be_are_given(monkeypatch):
    monkeypatch.setattr(patterns, "MAX_NAMES", 1000)
    assert len(expand("{0..9}{00..99}")) == 1000


@given(st.text("ab{},.01:", max_size=14))
def test_any_text_is_expanded_or_refused(pattern):
    assert len(expand(pattern)) >= 1


@pytest.mark.parametrize(
    "name", ["p#1.tar", "a b.tar", "c%20d.tar", "[x].tar", "u:v.tar", "a?b.tar", "~x", "C:\\x"]
)
def test_a_path_is_never_taken_for_a_url(name):
    assert local_path(name) == name


@pytest.mark.parametrize(
    "url", ["s3://b/x.tar", "gs://b", "https://h/x.tar", "HF://d", "x+y.z-1://"]
)
def test_remote_urls_are_refused_with_what_to_do(url):
    with pytest.raises(UsageError, match=r"is a URL.*local or mounted folder"):
        local_path(url)


def test_a_file_url_is_a_path():
    assert local_path("file:///data/a%20b.tar") == "/data/a b.tar"
    assert local_path("file://localhost/data/x.tar") == "/data/x.tar"
