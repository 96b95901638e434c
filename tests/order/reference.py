"""The order as `design.md` defines it, in plain loops, slow and obvious.

Written from the design and not from the package, which it may not import. Nothing is computed by
a formula that can be done by hand: lanes are lists that batches are popped from, a step's
positions are really sorted, random words are drawn from the beginning of their stream. Its one
library call is numpy's `Philox.random_raw`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Philox

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARDS, WINDOW_FIRST, WINDOW_SECOND = 0, 1, 2


def words_of(key: tuple[int, int], stream: int, num: int) -> list[int]:
    """The first `num` words of a stream."""
    philox = Philox(
        key=np.array(key, dtype=np.uint64), counter=np.array([0, 0, 0, stream], dtype=np.uint64)
    )
    return [int(word) for word in philox.random_raw(num)]


def by_word(words: Sequence[int], columns: Sequence[int], width: int) -> list[int]:
    """The columns, sorted by their words with the lowest bits replaced by the column."""
    bits = max(1, (width - 1).bit_length())
    keyed = sorted(
        ((word >> bits << bits) | column, column)
        for word, column in zip(words, columns, strict=True)
    )
    return [column for _, column in keyed]


def shuffled_lane(
    lane: list[int], words: tuple[list[int], list[int]], window: int, width: int
) -> list[int]:
    """A lane's places of the line, through its shuffle window."""
    if not lane:
        return lane
    start = lane[0]
    lane = block_pass(lane, start, words[0], 0, width)
    if len(lane) > window:
        lane = block_pass(lane, start, words[1], width - width // 2, width)
    return lane


def block_pass(
    content: list[int], first_place: int, words: list[int], shift: int, width: int
) -> list[int]:
    """Permute `content` block by block; its first place on the line is `first_place`.

    A place is known by where it lies, whatever stands there after the pass before.
    """
    blocks: dict[int, list[int]] = {}
    for offset in range(len(content)):
        blocks.setdefault((offset + shift) // width, []).append(offset)
    result = []
    for block in blocks.values():
        columns = [(offset + shift) % width for offset in block]
        order = by_word([words[first_place + offset] for offset in block], columns, width)
        result += [content[block[columns.index(column)]] for column in order]
    return result


def in_turn(ranks: int) -> list[int]:
    """Lane-ranks by their numbers with the bits reversed: 0, 4, 2, 6, 1, 5, 3, 7."""
    bits = len(f"{ranks - 1:b}")
    return sorted(range(ranks), key=lambda rank: f"{rank:0{bits}b}"[::-1])


@dataclass(frozen=True)
class Slot:
    """One place in a rank's batch."""

    index: int
    valid: bool


@dataclass(frozen=True)
class Reference:
    """The constants of an order; grid: (Q, M, B)."""

    counts: tuple[int, ...]
    seed: int
    window: int | None
    grid: tuple[int, int, int]
    steps_per_epoch: int | None = None

    @property
    def num_samples(self) -> int:
        return sum(self.counts)

    @property
    def epoch_length(self) -> int:
        ranks, _, batch = self.grid
        if self.steps_per_epoch is None:
            return self.num_samples
        return self.steps_per_epoch * ranks * batch

    def line(self, number: int) -> list[int]:
        """The dataset's numbers of all samples, shard after shard, as pass `number` has them."""
        shards = list(range(len(self.counts)))
        if self.window is not None and shards:
            words = words_of((self.seed + number, 0), SHARDS, len(shards))
            shards = by_word(words, shards, len(shards))
        samples_of = []
        index = 0
        for count in self.counts:
            samples_of.append(list(range(index, index + count)))
            index += count
        return [sample for shard in shards for sample in samples_of[shard]]

    def lanes(self, number: int) -> list[list[list[int]]]:
        """The places of the line in each lane, by lane-rank and worker, shuffled."""
        ranks, workers, batch = self.grid
        num_batches = self.num_samples // (ranks * batch)
        whole, more = divmod(num_batches, workers)
        lengths = [batch * (whole + (worker < more)) for worker in range(workers)]
        width = min(self.window or 1, max(lengths))
        key = (self.seed, number)
        words: tuple[list[int], list[int]] = ([], [])
        if width > 1:
            words = (
                words_of(key, WINDOW_FIRST, self.num_samples),
                words_of(key, WINDOW_SECOND, self.num_samples),
            )
        start = 0
        lanes: list[list[list[int]]] = []
        for _ in range(ranks):
            of_rank = []
            for length in lengths:
                lane = list(range(start, start + length))
                start += length
                if self.window is not None and width > 1:
                    lane = shuffled_lane(lane, words, self.window, width)
                of_rank.append(lane)
            lanes.append(of_rank)
        return lanes

    def one_pass(self, number: int) -> list[tuple[tuple[int, ...], int]]:
        """For each position: what it sorts by within a step, and the sample's index."""
        ranks, workers, batch = self.grid
        line = self.line(number)
        lanes = self.lanes(number)
        num_batches = self.num_samples // (ranks * batch)
        order: list[tuple[tuple[int, ...], int]] = []
        for turn in range(num_batches):
            for place in range(batch):
                for rank in in_turn(ranks):
                    lane = lanes[rank][turn % workers]
                    order.append(((number, 0, rank, turn, place), line[lane.pop(0)]))
        order += [((number, 1, at, 0, 0), line[at]) for at in range(len(order), len(line))]
        return order

    def epoch(self, epoch: int) -> list[tuple[tuple[int, ...], int]]:
        """The positions of one epoch, as `one_pass` has them."""
        if self.epoch_length == 0:
            return []
        first = epoch * self.epoch_length
        passes: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        positions = []
        for virtual in range(first, first + self.epoch_length):
            number, position = divmod(virtual, self.num_samples)
            if number not in passes:
                passes[number] = self.one_pass(number)
            positions.append(passes[number][position])
        return positions

    def steps(
        self, epoch: int, consumed: int, world_size: int, batch_size: int, even: str
    ) -> list[list[list[Slot]]]:
        """Every step that is left, as each rank's batch."""
        left = self.epoch(epoch)[consumed:]
        step_size = world_size * batch_size
        steps = []
        while len(left) >= step_size:
            dealt = [index for _, index in sorted(left[:step_size])]
            left = left[step_size:]
            steps.append(
                [
                    [Slot(dealt.pop(0), valid=True) for _ in range(batch_size)]
                    for _ in range(world_size)
                ]
            )
        if left and even != "drop":
            rest = [index for _, index in sorted(left)]
            steps.append(last_step(rest, world_size, batch_size, even))
        return steps


def last_step(rest: list[int], world_size: int, batch_size: int, even: str) -> list[list[Slot]]:
    """The rest, dealt evenly, and filled up under "pad"."""
    each, more = divmod(len(rest), world_size)
    dealt = list(rest)
    batches = []
    for rank in range(world_size):
        first_slot = len(rest) - len(dealt)
        own = [dealt.pop(0) for _ in range(each + (rank < more))]
        batch = [Slot(index, valid=True) for index in own]
        if even == "pad":
            repeated = own or rest[first_slot % len(rest) :] + rest[: first_slot % len(rest)]
            while len(batch) < batch_size:
                # A pad is in turn the first, second, ... of what is repeated.
                turn = len(batch) - len(own)
                batch.append(Slot(repeated[turn % len(repeated)], valid=False))
        batches.append(batch)
    return batches
