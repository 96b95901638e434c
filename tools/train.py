"""Train a byte-level language model on shards with DDP, and resume exactly where it was stopped.

    torchrun --nproc-per-node 2 tools/train.py SHARDS OUT --num-workers 2

What a training script needs of shardloader is marked with "shardloader:". Everything else is an
ordinary DDP loop. Checkpoints hold model, optimiser and loader together; run it again with any
number of ranks and workers, and it goes on from the last one. The launch files in tools/launch run
it on clusters: docs/clusters.md.

SHARDS is a folder or a URL with a manifest, OUT a folder that all hosts share. SIGTERM to any rank
makes all of them save after the step and exit with 75, for whoever started them to start them
again. While OUT/pause exists, training waits. A rank that is lost is an error on the others after
--timeout seconds.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import shardloader as sl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONTEXT = 192
BYTES = 257  # the 256 values, and one for what lies behind the end of a file
END = 256
STOPPED: Final = 75  # the exit code of ranks that were told to stop: start them again
LOOK_EVERY_S: Final = 0.2  # how often a pause is looked at


class ByteModel(nn.Module):
    """A small causal transformer over bytes."""

    def __init__(self, width: int = 96, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, BYTES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mean loss a sample, float32 [batch], of tokens int64 [batch, CONTEXT + 1]."""
        given, wanted = tokens[:, :-1], tokens[:, 1:]
        places = torch.arange(CONTEXT, device=tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=tokens.device)
        hidden = self.layers(self.bytes(given) + self.places(places), mask=mask, is_causal=True)
        loss = functional.cross_entropy(
            self.out(hidden).flatten(0, 1), wanted.flatten(), reduction="none"
        ).view(wanted.shape)
        inside = wanted != END
        return (loss * inside).sum(1) / inside.sum(1).clamp(min=1)


def crop(
    sample: Mapping[str, Any], rng: np.random.Generator, *, field: str = "py"
) -> Mapping[str, Any]:
    """A piece of the file; shardloader: rng is keyed by sample and epoch, also after a resume."""
    text = np.frombuffer(sample[field], dtype=np.uint8)
    start = int(rng.integers(max(1, len(text) - CONTEXT)))
    tokens = np.full(CONTEXT + 1, END, dtype=np.int64)
    piece = text[start : start + CONTEXT + 1]
    tokens[: len(piece)] = piece
    return {"tokens": tokens}


class Orders:
    """What was asked from outside, agreed on by all ranks, so that none leaves others waiting."""

    def __init__(self, out: Path, device: torch.device) -> None:
        self._pause = out / "pause"
        self._device = device
        self._asked_to_stop = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self._asked_to_stop = True

    def to_stop(self) -> bool:
        """Whether any rank was asked to stop; waits first while there is a pause."""
        while True:
            asked = torch.tensor([self._asked_to_stop, self._pause.exists()], dtype=torch.float32)
            asked = asked.to(self._device)
            distributed.all_reduce(asked, distributed.ReduceOp.MAX)
            stop, pause = asked.tolist()
            if stop or not pause:
                return bool(stop)
            time.sleep(LOOK_EVERY_S)


def started(timeout_s: float) -> torch.device:
    """Join the process group; this rank's device."""
    use_gpu = torch.cuda.is_available()
    timeout = timedelta(seconds=timeout_s)
    distributed.init_process_group("nccl" if use_gpu else "gloo", timeout=timeout)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if not use_gpu:
        return torch.device("cpu")
    device = torch.device("cuda", distributed.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def loader_of(options: argparse.Namespace) -> Any:
    """shardloader: the dataset and the loader; ranks and workers are dealt with inside."""
    dataset = sl.ShardDataset(
        options.shards,
        seed=0,
        shuffle=sl.Shuffle(window=500),
        fields=(options.field,),
        decode=None,
        transform=functools.partial(crop, field=options.field),
        cache=sl.Cache(options.cache, max_bytes=options.cache_bytes) if options.cache else None,
        storage_options=options.storage_options,
    )
    loader = sl.ShardLoader(dataset, batch_size=options.batch_size, num_workers=options.num_workers)
    loader.log_samples(options.out / "samples")
    return loader


def train(options: argparse.Namespace) -> bool:
    """Train until the epochs are over, or until told to stop; whether they are over."""
    device = started(options.timeout)
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    orders = Orders(options.out, device)
    loader = loader_of(options)
    model = DistributedDataParallel(ByteModel(options.width).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    checkpoint = options.out / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # shardloader: any rank's copy is everyone's

    report = Report(options.out, rank, world_size, options.num_workers)
    steps, stop = 0, False
    while loader.epoch < options.epochs and not stop:
        epoch = loader.epoch
        for batch in loader:
            report.first_batch(loader.state_dict())
            tokens = batch["tokens"].to(device)
            valid = batch["__valid__"].to(device)
            # shardloader: a sum, scaled: exact however many samples each rank has.
            loss = (model(tokens) * valid).sum() * sl.loss_scale(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            report.loss(epoch, loader, loss, batch["__global_valid__"])
            stop = orders.to_stop()
            if stop:
                break
            if steps % options.save_every == 0:
                save(checkpoint, rank, model.module, optimizer, loader)
    save(checkpoint, rank, model.module, optimizer, loader)
    distributed.barrier()  # nobody leaves before the checkpoint is there
    distributed.destroy_process_group()
    return not stop


def save(
    path: Path, rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any
) -> None:
    """Save all of it in one file, so that model and position can't part; rank 0 alone writes."""
    if rank == 0:
        temporary = path.with_suffix(".tmp")
        states = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),
        }
        with temporary.open("wb") as file:
            torch.save(states, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


class Report:
    """What the demo shows: losses of rank 0, times to the first batch, the process to kill."""

    def __init__(self, out: Path, rank: int, world_size: int, num_workers: int) -> None:
        self._about = {"rank": rank, "world_size": world_size, "num_workers": num_workers}
        self._out = out
        self._first = True
        (out / f"rank-{rank}.pid").write_text(str(os.getpid()))

    def first_batch(self, state: Mapping[str, Any]) -> None:
        """Note the time since the process started, and the state's size."""
        if self._first and self._about["rank"] == 0:
            seconds = time.time() - psutil.Process().create_time()
            self._append("first_batch.jsonl", seconds=seconds, state_bytes=len(json.dumps(state)))
        self._first = False

    def loss(self, epoch: int, loader: Any, loss: Tensor, global_valid: int) -> None:
        """Note a step's loss over all ranks."""
        total = loss.detach()
        distributed.all_reduce(total)
        if self._about["rank"] == 0:
            mean = float(total) / self._about["world_size"]
            left = loader.steps_left if loader.epoch == epoch else 0
            self._append("loss.jsonl", epoch=epoch, left=left, loss=mean, samples=int(global_valid))

    def _append(self, name: str, **values: Any) -> None:
        with (self._out / name).open("a") as file:
            file.write(json.dumps({**self._about, **values}) + "\n")


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards")
    parser.add_argument("out", type=Path)
    parser.add_argument("--field", default="py", help="whose bytes it learns")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=10, help="steps")
    parser.add_argument("--cache", type=Path, help="a folder of the host's own, for remote shards")
    parser.add_argument("--cache-bytes", default="50GB", help="the most that it takes")
    parser.add_argument("--storage-options", type=json.loads, help="of the URL, as JSON")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a lost rank")
    parser.add_argument("--width", type=int, default=96, help="of the model")
    return parser.parse_args(arguments)


def main() -> None:
    """Run the command line."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    if not train(options):
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()
