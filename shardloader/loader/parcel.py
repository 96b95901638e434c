"""How does a batch cross from a worker process to the training loop?

As few pieces: each large tensor or array, and each long list of texts or bytes, lies in a block of
the ring; small ones travel as their bytes; all else by pickle. Each large piece has a block of its
own, so that a loop which keeps the labels of every batch does not keep its images. Lists of texts
and bytes are made anew on arrival, and their block is free at once.

A batch is unpickled as what it was packed from: nobody on the way has to know.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from shardloader.loader.ring import received

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardloader.loader.ring import Sender

LARGE_BYTES: Final = 32_768  # from here on a piece gets a block


class Parcel:
    """A packed batch; pickled, it comes out as the batch. Raises what pickling raises."""

    def __init__(self, batch: Any, sender: Sender, token: str) -> None:
        self._sender = sender
        self._token = token
        self._data = bytes(ForkingPickler.dumps(self._pack(batch)))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes, str]]:
        return _arrived, (self._data, self._token)

    def _pack(self, value: Any) -> Any:
        kind = type(value)
        if kind is dict:
            return {name: self._pack(each) for name, each in value.items()}
        if kind is tuple:
            return tuple(map(self._pack, value))
        if kind is list:
            return self._pack_list(value)
        if kind is Tensor and _is_plain(value):
            return self._pack_tensor(value)
        if kind is np.ndarray and not value.dtype.hasobject and value.nbytes:
            contiguous = np.ascontiguousarray(value)
            data = contiguous.reshape(-1).view(np.uint8)
            return _Array(self._place(data), value.dtype, value.shape)
        return value

    def _pack_list(self, values: list[Any]) -> Any:
        kinds = set(map(type, values))
        if kinds == {str}:
            try:
                return self._pack_strings(
                    [value.encode() for value in values], values, is_text=True
                )
            except UnicodeEncodeError:  # surrogates of a name that is no UTF-8: pickle knows how
                return values
        if kinds == {bytes}:
            return self._pack_strings(values, values, is_text=False)
        return list(map(self._pack, values)) if _may_hold_pieces(values[:1]) else values

    def _pack_strings(self, data: list[bytes], values: list[Any], *, is_text: bool) -> Any:
        joined = b"".join(data)
        if len(joined) < LARGE_BYTES:
            return values
        sizes = np.fromiter(map(len, data), dtype=np.int64, count=len(data))
        return _Strings(self._place(np.frombuffer(joined, np.uint8)), sizes, is_text)

    def _pack_tensor(self, tensor: Tensor) -> Any:
        tensor = tensor.resolve_conj().resolve_neg()  # flags that its memory does not show
        # Dense memory in whatever order of dimensions, such as channels_last, stays in that order.
        order = sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True)
        if not tensor.permute(order).is_contiguous():
            tensor, order = tensor.contiguous(), list(range(tensor.dim()))
        data = tensor.permute(order).reshape(-1).view(torch.uint8).numpy()
        return _Tensor(self._place(data), tensor.dtype, tuple(tensor.shape), tensor.stride())

    def _place(self, data: Any) -> Any:
        """Where uint8 [n] lies: its bytes, or the block and how many of its bytes they are."""
        if len(data) < LARGE_BYTES:
            return data.tobytes()
        place = self._sender.take(len(data))
        place.memory[: len(data)] = data
        return place.worker, place.number, place.block, len(data)


def _may_hold_pieces(values: list[Any]) -> bool:
    """Whether a list of such values is worth looking through; JSON, say, is pickle's affair."""
    inner: list[Any] = []
    for value in values:
        if isinstance(value, (Tensor, np.ndarray)):
            return True
        inner += value.values() if isinstance(value, dict) else ()
        inner += value if isinstance(value, (list, tuple)) else ()
    return any(isinstance(each, (Tensor, np.ndarray)) for each in inner)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is its bytes, its dtype and its shape."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor.numel() > 0
    )


class _Piece(ABC):
    """Bytes that were placed, and what they are."""

    __slots__ = ("about", "place")

    def __init__(self, place: Any, *about: Any) -> None:
        self.place = place
        self.about = about

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.place, *self.about)

    @abstractmethod
    def value(self, token: str) -> Any:
        """What was packed."""

    def memory(self, token: str) -> Any:
        """The bytes, uint8 [n], writable."""
        if isinstance(self.place, bytes):
            return np.frombuffer(bytearray(self.place), dtype=np.uint8)
        worker, number, block, num_bytes = self.place
        return received(token, worker, number, block)[:num_bytes]


class _Tensor(_Piece):
    __slots__ = ()

    def value(self, token: str) -> Any:
        dtype, shape, strides = self.about
        return torch.from_numpy(self.memory(token)).view(dtype).as_strided(shape, strides)


class _Array(_Piece):
    __slots__ = ()

    def value(self, token: str) -> Any:
        dtype, shape = self.about
        return self.memory(token).view(dtype).reshape(shape)


class _Strings(_Piece):
    __slots__ = ()

    def value(self, token: str) -> Any:
        sizes, is_text = self.about
        stops = np.cumsum(sizes)
        data = self.memory(token).tobytes()
        spans = zip((stops - sizes).tolist(), stops.tolist(), strict=True)
        if is_text:
            return [data[start:stop].decode() for start, stop in spans]
        return [data[start:stop] for start, stop in spans]


def _arrived(data: bytes, token: str) -> Any:
    return _unpacked(pickle.loads(data), token)  # noqa: S301 - of a process of our own


def _unpacked(packed: Any, token: str) -> Any:
    kind = type(packed)
    if kind is dict:
        return {name: _unpacked(each, token) for name, each in packed.items()}
    if kind is tuple:
        return tuple(_unpacked(each, token) for each in packed)
    if kind is list:
        return [_unpacked(each, token) for each in packed]
    return packed.value(token) if isinstance(packed, _Piece) else packed
