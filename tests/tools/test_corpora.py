"""Corpora are made in the order of what they are made from."""

from __future__ import annotations

import pytest

from tools.corpora.__main__ import is_made, make
from tools.corpora.corpus import corpus_of


def test_no_form_is_made_of_shards_that_are_not_there(tmp_path):
    corpus = corpus_of("K", 1000)
    with pytest.raises(FileNotFoundError, match="loose is made from the shards"):
        make(corpus, tmp_path, "loose")
    make(corpus, tmp_path, "tar")
    make(corpus, tmp_path, "loose")
    assert is_made(corpus, tmp_path, "loose")
