"""Make a form of a corpus, unless it is there.

python -m tools.corpora T --form tar --work benchmarks/.work [--divide 20]

`tar` is made first, by shardloader; the other forms, those of `tools/corpora/forms`, are made from
it and need the library whose form it is.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
from pathlib import Path

from tools.corpora.corpus import Corpus, corpus_of

STAMP = "stamp.json"


def is_made(corpus: Corpus, work: Path, form: str) -> bool:
    """Whether the form lies there whole, by these very parameters."""
    stamp = corpus.folder(work, form).with_name(f"{form}.{STAMP}")
    return stamp.is_file() and stamp.read_text() == corpus.stamp


def make(corpus: Corpus, work: Path, form: str) -> Path:
    """Make the form unless it is made; returns its folder.

    Raises FileNotFoundError for another form than tar where that is not made.
    """
    folder = corpus.folder(work, form)
    if is_made(corpus, work, form):
        return folder
    if form != "tar" and not is_made(corpus, work, "tar"):
        raise FileNotFoundError(
            f"{form} is made from the shards, and {corpus.folder(work, 'tar')} has none: make them "
            "first, with --form tar"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if form == "tar":
        importlib.import_module("tools.corpora.shards").make(corpus, folder)
    else:
        maker = importlib.import_module(f"tools.corpora.forms.{form}")
        maker.make(corpus, corpus.folder(work, "tar"), folder)
    folder.with_name(f"{form}.{STAMP}").write_text(corpus.stamp)
    return folder


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", choices=["T", "I", "K"])
    parser.add_argument("--form", default="tar")
    parser.add_argument("--divide", type=int, default=1, help="so many times fewer samples")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/.work"))
    options = parser.parse_args()
    print(make(corpus_of(options.corpus, options.divide), options.work, options.form))


if __name__ == "__main__":
    main()
