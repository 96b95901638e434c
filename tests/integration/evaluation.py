"""The evaluations of docs/uneven.md, each in a function that every rank of uneven.py calls.

Each returns the figure over all ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy

import shardloader as sl
from tests.integration.models import classes, scores

BATCH_SIZE = 4


def a_loader(corpus: str) -> Any:
    """The loader of every case."""
    dataset = sl.ShardDataset(corpus, shuffle=False, even="pad")
    return sl.ShardLoader(dataset, batch_size=BATCH_SIZE)


def predict(batch: Any) -> Tensor:
    """Classes, int64 [batch]."""
    return classes(batch["__index__"])


def by_the_mask(corpus: str) -> float:
    """Count what is valid, and sum over ranks."""
    loader = a_loader(corpus)
    tally = torch.zeros(2, dtype=torch.int64)
    for batch in loader:
        valid = batch["__valid__"]
        right = predict(batch) == batch["cls"]
        tally += torch.stack([(right & valid).sum(), valid.sum()])
    distributed.all_reduce(tally)
    accuracy = tally[0].item() / tally[1].item()
    return float(accuracy)


def without_the_mask(corpus: str) -> float:
    """What counting every slot gives: pads and all."""
    right = torch.cat([predict(batch) == batch["cls"] for batch in a_loader(corpus)])
    tally = torch.tensor([right.sum(), len(right)])
    distributed.all_reduce(tally)
    return tally[0].item() / tally[1].item()


def by_gathering(corpus: str) -> float:
    """Gather a row a sample from every rank, and keep one of each number."""
    loader = a_loader(corpus)
    mine = torch.cat(
        [torch.stack([batch["__index__"], predict(batch), batch["cls"]], dim=1) for batch in loader]
    )
    gathered = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(gathered, mine)
    of_sample = {index: (said, true) for index, said, true in torch.cat(gathered).tolist()}
    accuracy = sum(said == true for said, true in of_sample.values()) / len(of_sample)
    return float(accuracy)


def by_torchmetrics(corpus: str) -> float:
    """Let a metric library count the valid rows and sum over ranks."""
    loader = a_loader(corpus)
    metric = MulticlassAccuracy(num_classes=10, average="micro")
    for batch in loader:
        valid = batch["__valid__"]
        if valid.any():
            metric.update(predict(batch)[valid], batch["cls"][valid])
    accuracy = metric.compute()
    return float(accuracy)


def area_by_torchmetrics(corpus: str) -> float:
    """A metric that keeps every row, which a rank must have at least one of."""
    metric = BinaryAUROC()
    for batch in a_loader(corpus):
        valid = batch["__valid__"]
        if valid.any():
            metric.update(scores(batch["__index__"])[valid], batch["cls"][valid] % 2)
    return float(metric.compute())


WAYS = (by_the_mask, without_the_mask, by_gathering, by_torchmetrics, area_by_torchmetrics)


def figures(corpora: list[str], of_one: str) -> list[dict[str, float]]:
    """What is found in each way, for every corpus and then for one of a single sample."""
    told = [{way.__name__: way(corpus) for way in WAYS} for corpus in corpora]
    told.append({way.__name__: way(of_one) for way in WAYS if way is not area_by_torchmetrics})
    return told
