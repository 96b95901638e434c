"""Do all ranks read the same order, from the same position?

Every rank says what it stands for, as plain values; the verdict is a sentence that names the field
and the ranks, and the likely mistake, or nothing. How the values travel is not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What ranks must agree on, in the order in which a difference is told, and the likely mistake.
FIELDS: Final = {
    "world_size": "give every rank the topology of the same group",
    "dataset": "let every rank open the same manifest",
    "next_dataset": "let every rank open the same manifest (were shards appended, and does not "
    "every node see them yet?)",
    "seed": "give every rank the same seed=",
    "window": "give every rank the same shuffle=",
    "steps_per_epoch": "give every rank the same steps_per_epoch=",
    "even": "give every rank the same even=",
    "batch_size": "give every rank the same batch_size=",
    "accumulate": "give every rank the same accumulate= or global_batch=",
    "epoch": "load the same checkpoint on every rank, and iterate on all of them or on none "
    "(is it only one rank that evaluates?)",
    "consumed": "load the same checkpoint on every rank, and skip() alike",
    "grid": "give every rank the same num_workers= and grid=, or load the same checkpoint",
    "num_steps": "load the same checkpoint on every rank",
}


def verdict(stands: Sequence[Mapping[str, Any]]) -> str | None:
    """What the ranks' stands (rank r's is number r) differ in, in words; None if in nothing."""
    for name, way_out in FIELDS.items():
        ranks_of: dict[str, list[int]] = {}
        for rank, stand in enumerate(stands):
            ranks_of.setdefault(repr(stand.get(name)), []).append(rank)
        if len(ranks_of) > 1:
            told = "; ".join(f"{value} on {_ranks(ranks)}" for value, ranks in ranks_of.items())
            return (
                f"all ranks read one order together, and they differ in {name}: {told}: {way_out}"
            )
    return None


def absent(ranks: Sequence[int], seconds: float) -> str:
    """What to say when ranks did not arrive in time."""
    return (
        f"all ranks of the data-parallel group start an epoch together, and after {seconds:g} s "
        f"{_ranks(ranks)} had not: iterate the loader on all ranks or on none (is it only one rank "
        "that evaluates?), look whether those ranks have ended or hang, and where topology= is "
        "given let no two data-parallel ranks give the same rank"
    )


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 0, 2-7`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    told = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {told}" if len(ranks) == 1 else f"ranks {told}"
