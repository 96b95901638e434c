"""`shardloader plan`: who will read what, or has read what, computed from counts alone.

Steps of `--steps` count from the epoch's start, as a training loop counts them; the plan itself
counts from its position, which `Plan.first_step` translates.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardloader.cli import drawing, report
from shardloader.cli.listing import Keys, listed, print_listing, steps_to_list
from shardloader.cli.sources import (
    add_dataset,
    at_least_one,
    one_dataset,
)
from shardloader.cli.stretches import cache_document, print_stretch, stretch_document, stretches_of
from shardloader.distributed.environment import known_local_ranks
from shardloader.errors import UsageError
from shardloader.order.dealing import EVEN_POLICIES
from shardloader.order.grid import Grid
from shardloader.order.window import DEFAULT_WINDOW, Shuffle
from shardloader.planning.picture import picture
from shardloader.planning.plan import plan as make_plan
from shardloader.reading.cache import DEFAULT, Cache
from shardloader.reading.cached_sizes import cached_bytes
from shardloader.reading.catalog import earlier, open_catalog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.planning.planned import Plan
    from shardloader.reading.catalog import Catalog

EPILOG = """\
No shard is read. --state takes a file with what ShardLoader.state_dict() returned, as JSON; its
epoch, seed, shuffle and grid hold. --counts plans for a dataset that is not there yet; it has no
sizes, so bytes are left out.

Where shards come through the node's cache, as remote and compressed ones do, the least cache is
that with which each shard is fetched once a node and epoch: it has room for the shards that all
readers of a node (workers, or ranks without any) need at one time, over which their windows reach.
A loader refuses one that is smaller. Compressed shards on a store count as they lie there until
their indexes have been fetched, and an index as the most that it may take until it is in --cache.
More is room for what is fetched ahead, and best is room for all.

Figures are the least, the median and the most of all ranks or workers. Shard bytes are the sizes
of the shards opened; sample bytes an estimate, each sample as large as its shard's mean. Where a
worker reads stretches of shards of its own, as in the topology that the grid was made for, shards
are counted for all ranks unless that is too much work; elsewhere on all ranks where that is the
work of some 50 million samples at most, else on a few, and then it says so.

--then changes the topology in mid-epoch, as a resume does; each stretch has figures of its own.
Its steps count from the epoch's start, over all stretches, as a training loop counts them.
--quality says from how many shards a batch comes, and how far samples that are neighbours on disk
come apart in training. --plot draws who reads which shard when. --steps A:B lists what the steps A
to B-1 hold, counted from the epoch's start, and leaves the counting of shards out; those before a
state's position are told as the topology given here read them.

example:
  shardloader plan corpus/ --batch-size 32 --world-size 64 --num-workers 8
  shardloader plan --counts 1000x1000 --batch-size 32 --world-size 16 --num-workers 4
  shardloader plan --counts 40x10000 --batch-size 32 --world-size 4 --then 1500:world-size=6
  shardloader plan --counts 40x10000 --batch-size 32 --world-size 4 --window 1000 --quality
  shardloader plan --counts 40x10000 --batch-size 32 --world-size 4 --plot plan.png
  shardloader plan corpus/ --batch-size 4 --world-size 2 --epoch 3 --steps 0:2 --rank 1
  shardloader plan corpus/ --batch-size 4 --world-size 2 --state ckpt.json --steps 10:12
"""

_COUNTS = re.compile(r"([0-9]{1,10})x([0-9]{1,18})", re.ASCII)
_MOST_SHARDS = 2 * 10**7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `plan`."""
    add_dataset(parser, is_optional=True)
    parser.add_argument(
        "--counts", metavar="NxK", help="instead of SRC: plan for N shards of K samples each"
    )
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="where shards will be kept, whose indexes are there (default: ~/.cache/shardloader)",
    )
    _add_topology(parser.add_argument_group("topology"))
    _add_order(parser.add_argument_group("order"))
    listing = parser.add_argument_group("listing")
    listing.add_argument("--steps", metavar="A:B", help="list the samples of these steps")
    listing.add_argument("--rank", type=int, metavar="R", help="of this rank alone")
    looking = parser.add_argument_group("looking closer")
    looking.add_argument(
        "--quality", action="store_true", help="measure the shuffle, beside a perfect one"
    )
    looking.add_argument(
        "--plot",
        metavar="FILE",
        help="draw who reads which shard when, as .png, .pdf or .svg (needs matplotlib)",
    )


def _add_topology(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="samples a rank and step; this, or --global-batch, is needed",
    )
    group.add_argument(
        "--accumulate", type=int, metavar="N", help="steps that make an optimiser step"
    )
    group.add_argument(
        "--global-batch",
        type=int,
        metavar="N",
        help="samples of an optimiser step over all ranks; --batch-size is then the most at once",
    )
    group.add_argument("--world-size", type=int, metavar="N", default=1, help="ranks (default: 1)")
    group.add_argument(
        "--num-workers",
        type=int,
        metavar="N",
        default=0,
        help="DataLoader workers a rank (default: 0)",
    )
    group.add_argument(
        "--ranks-per-node",
        type=at_least_one,
        metavar="N",
        help="ranks that share a node's cache (default: what the launcher says, or all)",
    )
    group.add_argument(
        "--even",
        choices=tuple(EVEN_POLICIES),
        default="pad",
        help="what happens at the epoch's end (default: pad)",
    )
    group.add_argument(
        "--then",
        metavar="STEP:NAME=N[,NAME=N]",
        action="append",
        default=[],
        help=(
            "from STEP on another world-size, num-workers or batch-size; may be given again for "
            "later steps"
        ),
    )


def _add_order(group: argparse._ArgumentGroup) -> None:
    """Take what defines the order; no defaults, since a state says the same for itself."""
    group.add_argument("--epoch", type=int, metavar="N", help="the epoch (default: 0)")
    group.add_argument("--seed", type=int, metavar="N", help="of the shuffle (default: 0)")
    group.add_argument(
        "--shuffle",
        action=argparse.BooleanOptionalAction,
        help="shuffle, or take the dataset's own order (default: shuffle)",
    )
    group.add_argument(
        "--window",
        type=int,
        metavar="N",
        help=f"samples of the shuffle's window (default: {DEFAULT_WINDOW})",
    )
    group.add_argument(
        "--grid",
        metavar="Q,M,B",
        help="ranks, workers and batch of the grid (default: the topology's)",
    )
    group.add_argument("--steps-per-epoch", type=int, metavar="N", help="epochs of so many steps")
    group.add_argument("--state", metavar="FILE", help="a checkpoint to go on from, as JSON")


def run(options: argparse.Namespace) -> int:
    """Plan, and say what comes out."""
    _check(options)
    state = None if options.state is None else _state(options.state)
    catalog, counts = _source(options)
    catalog = _as_it_was(catalog, state)
    plan = make_plan(
        counts if catalog is None else catalog.manifest,
        batch_size=options.batch_size,
        world_size=options.world_size,
        num_workers=options.num_workers,
        even=options.even,
        epoch=options.epoch,
        seed=options.seed,
        shuffle=_shuffle(options),
        grid=_grid(options.grid),
        steps_per_epoch=options.steps_per_epoch,
        state=state,
        accumulate=options.accumulate,
        global_batch=options.global_batch,
    )
    rows = None
    if options.steps is not None:
        lister, steps = steps_to_list(plan, options.steps, options.rank)
        rows = listed(lister, steps, options.rank, Keys(catalog))
    parts = stretches_of(plan, options.then)
    if options.plot is not None:
        _draw(options, parts, catalog)
    document = _document(options, plan, catalog, parts)
    if options.json:
        report.print_json(document | {"listing": None if rows is None else list(rows)})
        return 0
    _print(document)
    if rows is not None:
        report.print_line("")
        print_listing(rows)
    return 0


def _draw(options: argparse.Namespace, parts: tuple[Plan, ...], catalog: Catalog | None) -> None:
    ranks = sum(part.dealing.world_size for part in parts)
    with report.progress(ranks, unit="rank", what="looking at ranks") as bar:
        seen = picture(parts, advance=bar.update)
    drawing.draw(options.plot, seen, parts, catalog.location if catalog else options.counts)


def _check(options: argparse.Namespace) -> None:
    if bool(options.source) == (options.counts is not None):
        raise UsageError("a plan is of a dataset SRC, or of --counts NxK: give one of them")
    if options.batch_size is None and options.global_batch is None:
        raise UsageError("a plan deals batches: give --batch-size N, or --global-batch N")
    if options.rank is not None and options.steps is None:
        raise UsageError("--rank says whose samples are listed: give --steps A:B with it")
    if options.shuffle is False and options.window is not None:
        raise UsageError("--window is the shuffle's, and --no-shuffle leaves it out: give one")
    if options.then and options.steps is not None:
        raise UsageError(
            "--steps lists steps of one topology: leave --then out, or take the state at that step"
        )
    if options.plot is not None:
        drawing.check(options.plot)


def _source(options: argparse.Namespace) -> tuple[Catalog | None, NDArray[np.int64]]:
    if options.counts is None:
        catalog = open_catalog(
            one_dataset(options.source),
            index_dir=options.index_dir,
            may_index=False,
            cache=DEFAULT if options.cache is None else Cache(options.cache),
            storage_options=options.storage_options,
        )
        return catalog, catalog.manifest.counts
    match = _COUNTS.fullmatch(options.counts)
    if match is None or int(match[1]) > _MOST_SHARDS:
        raise UsageError(
            f"--counts is shards x samples a shard, such as 1000x10000, with at most "
            f"{_MOST_SHARDS:,} shards, not {options.counts!r}"
        )
    return None, np.full(int(match[1]), int(match[2]), dtype=np.int64)


def _as_it_was(catalog: Catalog | None, state: Any) -> Catalog | None:
    """Give the dataset that a state was made with, where shards were appended to it since."""
    digest = state.get("dataset") if isinstance(state, dict) else None
    if catalog is None or not isinstance(digest, str) or digest == catalog.manifest.digest:
        return catalog
    return earlier(catalog, digest) or catalog


def _shuffle(options: argparse.Namespace) -> bool | Shuffle:
    if options.window is not None:
        return Shuffle(window=options.window)
    return options.shuffle is not False


def _grid(text: str | None) -> Grid | None:
    if text is None:
        return None
    try:
        return Grid.from_list([int(part) for part in text.split(",")])
    except UsageError:
        raise
    except ValueError:
        raise UsageError(
            f"--grid is ranks, workers and batch, such as 8,4,32, not {text!r}"
        ) from None


def _state(path: str) -> Any:
    try:
        state = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: --state takes what ShardLoader.state_dict() returned, as JSON, and this is "
            f"none ({error}): from a checkpoint of torch.save, write its loader's part with "
            "json.dump"
        ) from None
    # A checkpoint is often {"model": ..., "loader": ...}.
    return state["loader"] if isinstance(state, dict) and "loader" in state else state


def _document(
    options: argparse.Namespace, plan: Plan, catalog: Catalog | None, parts: tuple[Plan, ...]
) -> dict[str, Any]:
    order, first_step, stretches = plan.schedule.order, plan.first_step, []
    sizes = None if catalog is None else cached_bytes(catalog)
    ranks_per_node = options.ranks_per_node or known_local_ranks()
    for part in parts:
        stretches.append(
            stretch_document(
                part, first_step, is_counted=options.steps is None, is_measured=options.quality
            )
            | cache_document(part, sizes, ranks_per_node)
        )
        first_step += part.steps
    return {
        "dataset": {
            "source": catalog.location if catalog else options.counts,
            "shards": len(order.counts),
            "samples": order.num_samples,
            "digest": catalog.manifest.digest if catalog else None,
        },
        "state": plan.checkpoint.to_state(),
        "epoch_length": plan.dealing.length,
        "first_step": plan.first_step,
        **{
            name: sum(each[name] for each in stretches)
            for name in ("steps", "samples", "pads", "omitted")
        },
        "stretches": stretches,
        "plot": options.plot,
    }


def _print(document: dict[str, Any]) -> None:
    dataset, state = document["dataset"], document["state"]
    shards = report.plural(dataset["shards"], "shard")
    samples = report.plural(dataset["samples"], "sample")
    window = "no shuffle" if state["window"] is None else f"window {state['window']:,}"
    report.print_facts(
        [
            ("dataset", f"{report.printable(dataset['source'])} ({shards}, {samples})"),
            ("order", f"epoch {state['epoch']}, seed {state['seed']}, {window}"),
            ("grid", ",".join(map(str, state["grid"])) + " (ranks, workers, batch)"),
            ("position", _position(document)),
        ]
    )
    for stretch in document["stretches"]:
        report.print_line("")
        print_stretch(stretch)
    if document["plot"] is not None:
        report.print_line("")
        report.print_line(f"drawn to {report.printable(document['plot'])}")


def _position(document: dict[str, Any]) -> str:
    consumed, step = document["state"]["consumed"], document["first_step"]
    if consumed == 0:
        return "the epoch's start"
    topology = document["stretches"][0]["topology"]
    whole = consumed % (topology["world_size"] * topology["batch_size"]) == 0
    rounded = "" if whole else ", rounded down: other steps came before"
    return f"{consumed:,} of {document['epoch_length']:,} samples consumed (step {step:,}{rounded})"
