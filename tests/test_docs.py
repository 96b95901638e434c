"""README and docs speak of what is there: their code runs, their commands parse, their links lead.

`tests/trainers/test_docs.py` holds that the scripts of docs/trainers.md are run as they stand.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import simplejpeg
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchmetrics.classification import MulticlassAccuracy

import shardloader as sl
from shardloader.cli import COMMANDS, _module, _parser

ROOT = Path(__file__).parents[1]
PAGES = {page.name: page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
TEXTS = {name: page.read_text() for name, page in PAGES.items()}
CLASSES = 10
_BLOCK = re.DOTALL | re.MULTILINE

# What stands for places and machines that tests don't have, and for data that take long.
STANDS_FOR = {
    "s3://bucket": "memory://bucket",
    "/nfs/corpus": "corpus",
    'ShardWriter("corpus/"': 'ShardWriter("new/"',
    '(rows, "corpus/"': '(rows, "new/"',
    "/nvme/cache": "cache",
    'device="cuda"': 'device="cpu"',
    "num_workers=8": "num_workers=0",
    "num_workers=4": "num_workers=0",
    "workers=4": "workers=1",
    "range(100_000)": "range(100)",
    "range(2_000)": "range(5)",
    "{000000..000099}": "{000000..000001}",
}


def blocks(kind: str) -> list[Any]:
    """The blocks of one kind, each with its page, but those of which another test speaks."""
    found = []
    for name, text in TEXTS.items():
        if name == "trainers.md":
            continue
        for number, block in enumerate(re.findall(rf"^ *```{kind}\n(.*?)```", text, _BLOCK)):
            found.append(pytest.param(textwrap.dedent(block), id=f"{name}-{kind}-{number}"))
    return found


def changed(diff: str) -> str:
    """What a diff makes of the code."""
    return "\n".join(line[1:] for line in diff.splitlines() if line[:1] in {"+", " "})


def written(place: str, number: int = 12, **options: Any) -> None:
    """A corpus with all the fields that the pages speak of."""
    image = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8))
    with sl.ShardWriter(place, max_samples=6, pattern="{:06d}.tar", **options) as writer:
        for sample in range(number):
            about = {"id": str(sample), "height": 16 * sample}
            writer.write(
                {"__key__": f"{sample:06d}", "jpg": image, "cls": sample % CLASSES, "json": about}
            )


class OneRank:
    """What `torch.distributed` is to the only rank; tests/integration runs those loops on two."""

    get_world_size = staticmethod(lambda: 1)
    all_reduce = staticmethod(lambda tensor: None)
    broadcast_object_list = staticmethod(lambda objects, src: None)

    @staticmethod
    def all_gather(gathered, mine):
        gathered[0].copy_(mine)


class OnOneRank(torch.nn.Linear):
    """A model as DistributedDataParallel has it, of which there is one."""

    no_sync = staticmethod(contextlib.nullcontext)


def losses(model: Any, batch: Any) -> Any:
    return model(batch["jpg"].float().mean((1, 2, 3))[:, None])[:, 0]


@pytest.fixture
def store():
    """What stands for a bucket."""
    yield
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def names(tmp_path, monkeypatch, store):
    """The names that a reader of a page has already."""
    monkeypatch.chdir(tmp_path)
    written("corpus/")
    written("memory://bucket/corpus")
    model = OnOneRank(1, 1)
    dataset = sl.ShardDataset("corpus/", fields=("jpg", "cls"))
    made = partial(sl.ShardLoader, dataset, batch_size=4)
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(b"\xff\xd8\xff")
    Path("rows.jsonl").write_text('{"id": 1, "text": "a", "meta": {}}\n')
    return {
        "__name__": "page",
        "sl": sl,
        "torch": torch,
        "distributed": OneRank,
        "contextlib": contextlib,
        "StatefulDataLoader": StatefulDataLoader,
        "Join": contextlib.nullcontext,
        "dataset": dataset,
        "loader": made(),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-4),
        "augment": lambda sample: sample,
        "transform": lambda sample: sample,
        "per_sample_loss": losses,
        "MulticlassAccuracy": MulticlassAccuracy,
        "predict": lambda batch: batch["cls"],
        "epochs": 1,
        "resuming": True,
        "checkpoint": {"loader": made().state_dict()},
        "path": tmp_path / "checkpoint.pt",
        "photos": [(photo, 3)],
    }


@pytest.mark.parametrize("code", [*blocks("python"), *blocks("diff")])
def test_the_code_of_a_page_runs_as_it_stands(code, names):
    if code.startswith(("-", "+")):
        code = changed(code)
    for place, other in STANDS_FOR.items():
        code = code.replace(place, other)
    exec(compile(code, "page", "exec"), names)  # noqa: S102 - it is what is tested


def commands():
    """The command lines in the blocks of all pages."""
    for name, text in TEXTS.items():
        for block in re.findall(r"^ *```console\n(.*?)```", text, _BLOCK):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip().startswith("shardloader "):
                    yield pytest.param(shlex.split(line, comments=True), id=f"{name}-{line[:60]}")


@pytest.mark.parametrize("words", list(commands()))
def test_a_command_line_of_a_page_parses(words):
    assert _parser(words[1:]).parse_args(words[1:]).command == words[1]


def options_of(command):
    parser = argparse.ArgumentParser()
    _module(command).add_arguments(parser)
    return {*parser._option_string_actions, "--json", "--verbose", "-v"}


@pytest.mark.parametrize("page", TEXTS)
def test_commands_options_and_names_in_sentences_are_there(page):
    text = re.sub(r"```.*?```", "", TEXTS[page], flags=re.DOTALL)
    for span in re.findall(r"`shardloader (\w[^`]*)`", text):
        command, *words = span.split()
        assert command in {*COMMANDS, "COMMAND"}, span
        asked = {word.partition("=")[0] for word in words if re.match(r"--\w", word)}
        assert command == "COMMAND" or asked <= options_of(command), span
    for name in re.findall(r"\bsl\.([A-Za-z_]+)", TEXTS[page]):
        assert hasattr(sl, name), name


@pytest.mark.parametrize("page", TEXTS)
def test_links_files_and_verbs_that_a_page_names_are_there(page):
    text, here = TEXTS[page], PAGES[page].parent
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("http") or (here / target).exists(), target
    for path in re.findall(r"`((?:tools|tests|benchmarks|docs|shardloader)/[\w/.]+)`", text):
        if path.startswith("benchmarks/results/"):
            continue  # what a benchmark writes
        assert (ROOT / path).exists(), path
    verbs = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {*re.findall(r"`(?:\w+=\S+ )*make ([a-z]+)`", text)} <= verbs
