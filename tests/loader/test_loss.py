"""loss_scale: what it counts, over which group, and what it returns."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributed

import shardloader as sl

BATCH = {
    "__valid__": torch.tensor([True, True, False]),
    "__global_valid__": 3,
    "__world_size__": 1,
}


def test_by_default_it_is_world_size_over_the_planned_number():
    assert sl.loss_scale(BATCH) == 1 / 3
    assert sl.loss_scale(BATCH | {"__world_size__": 6}) == 2.0
    assert sl.loss_scale(BATCH | {"__group_valid__": 12}) == 1 / 12
    assert sl.loss_scale(BATCH | {"__global_valid__": 0}) == 0.0


def test_a_list_of_batches_weighs_as_all_of_them_together():
    assert sl.loss_scale([BATCH, BATCH]) == 1 / 6
    grouped = BATCH | {"__group_valid__": 5}
    assert sl.loss_scale([grouped, grouped]) == 1 / 5


def test_alone_a_rank_counts_without_a_process_group():
    assert sl.loss_scale(BATCH, sync=True) == 1 / 2
    assert sl.loss_scale(BATCH, weight=5) == 1 / 5
    assert sl.loss_scale([BATCH, BATCH], sync=True) == 1 / 4
    assert sl.loss_scale(BATCH, weight=0) == 0.0
    assert not distributed.is_initialized()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_weight_that_is_a_tensor_gives_a_tensor_and_stays_as_it_was(dtype, shape):
    weight = torch.full(shape, 8, dtype=dtype)
    scale = sl.loss_scale(BATCH, weight=weight)
    assert (scale.dtype, scale.shape, scale.item()) == (torch.float64, (), 1 / 8)
    assert weight.item() == 8


def test_a_gradient_does_not_flow_through_the_weight():
    weight = torch.tensor(8.0, requires_grad=True)
    assert not sl.loss_scale(BATCH, weight=weight).requires_grad


@pytest.mark.parametrize("options", [{"sync": True}, {"weight": 3}])
def test_several_ranks_cannot_count_together_without_a_process_group(options):
    with pytest.raises(sl.UsageError, match="the 4 ranks count together through"):
        sl.loss_scale(BATCH | {"__world_size__": 4}, **options)


@pytest.fixture
def a_group_of_one(tmp_path):
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("a_group_of_one")
def test_a_group_that_is_not_the_data_parallel_one_is_refused():
    with pytest.raises(sl.UsageError, match="over a group of the 2 data-parallel ranks, and this"):
        sl.loss_scale(BATCH | {"__world_size__": 2}, sync=True)
    assert sl.loss_scale(BATCH, sync=True) == 1 / 2


@pytest.mark.parametrize("batch", [{"txt": []}, (1, 2), None, [], [{"txt": []}]])
@pytest.mark.parametrize("options", [{}, {"sync": True}, {"weight": 2}])
def test_a_batch_without_entries_is_refused(batch, options):
    with pytest.raises(sl.UsageError, match='leave meta= at "all" or "mask"'):
        sl.loss_scale(batch, **options)


@pytest.mark.parametrize("weight", ["3", torch.ones(2), None, [1, 2]])
def test_a_weight_that_is_no_number_is_refused(weight):
    if weight is None:  # which stands for the valid samples
        assert sl.loss_scale(BATCH, weight=None) == 1 / 3
        return
    with pytest.raises(sl.UsageError, match="weight= is a number, or a tensor of one element"):
        sl.loss_scale(BATCH, weight=weight)


def test_a_weight_that_is_not_a_number_is_not_hidden():
    assert math.isnan(sl.loss_scale(BATCH, weight=math.nan))
