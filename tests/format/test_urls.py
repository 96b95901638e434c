from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import UsageError
from shardloader.format.urls import without_secrets
from shardloader.reading.source import resolve
from shardloader.writing.sources.opening import open_source
from shardloader.writing.writer import ShardWriter


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a.tar", "s3://bucket/a.tar"),
        ("https://me:pass@host:80/a/{0..9}.tar", "https://***@host:80/a/{0..9}.tar"),
        ("https://me:p@ss@host/a.tar", "https://***@host/a.tar"),
        ("https://host/a@b.tar?sig=x%2F&y#z", "https://host/a@b.tar?***"),
        ("az://a?sas=1::s3://k:s@b/c", "az://a?***"),
        ("simplecache::s3://k:s@b/c", "simplecache::s3://***@b/c"),
        ("read 'ftp://u@h/x' and 'ftp://h/y?q'", "read 'ftp://***@h/x' and 'ftp://h/y?***"),
        ("C:/x?y", "C:/x?y"),
        ("", ""),
    ],
)
def test_what_comes_before_the_host_and_after_the_question_mark_is_hidden(text, shown):
    assert without_secrets(text) == shown


words = st.text("abcXYZ019:@%+=._-", min_size=1, max_size=12)


@given(user=words, query=words, path=st.text("abc/._-", max_size=12))
def test_no_secret_of_a_url_is_left(user, query, path):
    secret = f"SECRET{user}"
    shown = without_secrets(f"s3://key:{secret}@host/{path}?token=SECRET{query}")
    assert "SECRET" not in shown
    assert shown == f"s3://***@host/{path}?***"


@pytest.mark.parametrize("use", [resolve, ShardWriter])
def test_a_refused_url_is_told_without_its_secrets(use):
    with pytest.raises(UsageError) as caught:
        use("s3://key:SECRET@host/corpus?token=SECRET")
    assert "SECRET" not in str(caught.value)
    assert "host/corpus" in str(caught.value)


@pytest.mark.parametrize("word", ["a.jsonl", "folder", "a.tar", "a.csv", "a.parquet"])
def test_a_source_that_is_not_there_is_told_without_its_secrets(word):
    with pytest.raises(UsageError, match="there is nothing to read at") as caught:
        open_source([f"memory://key:SECRET@nowhere/{word}?token=SECRET"])
    assert "SECRET" not in str(caught.value)
