"""How do samples become a batch when no collate_fn is given?

By field: arrays and tensors of one shape and dtype are stacked, numbers become a tensor, all else
(text, bytes, JSON) stays a list. What is ragged is refused with its field, since a batch that is
a tensor today and a list tomorrow breaks a model in the middle of the night.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from shardloader.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


ARRAYS: Final = (np.ndarray, np.generic)
PLAIN: Final = {str, bytes, dict, list}
UNKNOWN_TO_TORCH: Final = "OSUVMm"  # kinds of numpy's dtypes


def collate(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join samples, field by field; raises SampleError naming field and keys if they differ.

    Arrays [...] become a tensor [batch, ...] of their dtype, ints an int64 and floats a float32
    tensor [batch], bools a bool tensor; other values a list of length batch.
    """
    if not samples:
        return {}
    names = samples[0].keys()
    for sample in samples:
        if sample.keys() != names:
            odd = sorted(map(str, names ^ sample.keys()))
            raise SampleError(
                "samples of one batch have the same fields, and those with the keys "
                f"{samples[0].get('__key__')!r} and {sample.get('__key__')!r} differ in {odd}: "
                "choose fields=, add what is missing in transform=, or give collate_fn="
            )
    return {
        name: join_field(name, [sample[name] for sample in samples])
        for name in names
        if name != "__key__"
    }


def join_field(name: str, values: Any) -> Any:
    """One field of a batch, from a list of values or an array [batch, ...].

    Raises SampleError if values are ragged, or of several kinds.
    """
    if isinstance(values, np.ndarray):
        return _as_tensor(values)
    kinds = set(map(type, values))
    if kinds <= PLAIN:
        return values
    if _all(values, ARRAYS):
        return _stacked(name, [np.asarray(value) for value in values])
    if _all(values, (torch.Tensor,)):
        if len({(value.shape, value.dtype) for value in values}) > 1:
            raise _ragged(name, [(tuple(value.shape), value.dtype) for value in values])
        return torch.stack(values)
    if kinds <= {int, float} or kinds == {bool}:
        return _numbers(name, values, kinds)
    if any(isinstance(value, (*ARRAYS, torch.Tensor, int, float)) for value in values):
        raise SampleError(
            f"numbers of one field become a tensor, and the field {name!r} has "
            f"{sorted(kind.__name__ for kind in kinds)} in one batch: make them one kind in "
            "transform=, or give collate_fn="
        )
    return values


def rows_of(array: np.ndarray[Any, Any]) -> list[Any]:
    """The rows of an array as arrays, also where a row is a single number."""
    shape = array.shape[1:]
    return [array[at : at + 1].reshape(shape) for at in range(len(array))]


def stack(values: Any) -> Any:
    """An array [samples, ...] of a list of arrays that are alike; anything else as it is."""
    if not isinstance(values, list) or not values or set(map(type, values)) != {np.ndarray}:
        return values
    return np.stack(values) if len({(each.shape, each.dtype) for each in values}) == 1 else values


def _all(values: list[Any], kinds: tuple[type, ...]) -> bool:
    return all(isinstance(value, kinds) for value in values)


def _numbers(name: str, values: list[Any], kinds: set[type]) -> torch.Tensor:
    if kinds == {bool}:
        return torch.tensor(values)
    if float in kinds:
        return torch.tensor(values, dtype=torch.float32)
    big = [value for value in values if not -(2**63) <= value < 2**63]
    if big:
        raise SampleError(
            f"integers of one field become an int64 tensor, and the field {name!r} has {big[0]}: "
            f"read it as text with decode={{{name!r}: 'text'}}, or give collate_fn="
        )
    return torch.tensor(values, dtype=torch.int64)


def _stacked(name: str, arrays: list[np.ndarray[Any, Any]]) -> Any:
    kinds = {(array.shape, array.dtype) for array in arrays}
    if len(kinds) > 1:
        raise _ragged(name, sorted(kinds, key=str))
    return arrays if arrays[0].dtype.kind in UNKNOWN_TO_TORCH else _as_tensor(np.stack(arrays))


def _as_tensor(array: np.ndarray[Any, Any]) -> Any:
    """A tensor of a batch's array; rows, if torch knows no such dtype."""
    if array.dtype.kind in UNKNOWN_TO_TORCH:
        return rows_of(array)
    # torch knows this machine's byte order alone; a .npy file may come from another's
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def _ragged(name: str, kinds: list[Any]) -> SampleError:
    return SampleError(
        f"arrays of one field are stacked, so they have one shape and dtype, and the field "
        f"{name!r} has {kinds[:4]}: crop or pad it in transform=, or give collate_fn="
    )
