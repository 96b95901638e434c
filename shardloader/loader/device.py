"""How does a batch get to the device before the training loop asks for it?

From pinned memory, on a stream of its own, some batches ahead. The loop's stream waits for the
copy's event before it uses a batch, and memory is not used again while either stream may be at it:
the host's until the copy is done, the device's until the loop's stream has passed (record_stream).

What goes: every tensor of a batch, however deep in mappings, lists, tuples and dataclasses, the
entry `__valid__` among them. What stays: everything else, so texts, numpy arrays, numbers. An
object with a `.to` of its own that is none of those containers is moved by it when its batch is
given, on the loop's stream, since nobody else knows what it holds.

What the loop has not received yet counts nothing: this is a stage between the workers and the
iterator, which alone moves the position. What a device does lies behind `Side`, so that all else
runs, and is tested, without one.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import Tensor

from shardloader.dataset.skipping import Carrier
from shardloader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

log = logging.getLogger("shardloader")

DEPTH: Final = 2  # batches that lie on the device, or are on their way, besides the loop's own
_HOST_ONLY: Final = frozenset((str, bytes, int, float, bool, type(None)))
_NO_GPU: Final = (
    "device=%r: this machine has no GPU that torch knows of, so batches stay in the host's memory"
)


class Side(Protocol):
    """What a device does with copies and streams. The loop's stream is the one that is current."""

    def current(self) -> AbstractContextManager[Any]:
        """Let this device be the current one meanwhile."""
        ...

    def pinned(self, tensor: Tensor) -> Tensor:
        """The tensor in memory that can be copied from without the processor."""
        ...

    def copying(self) -> AbstractContextManager[Any]:
        """Let the stream of the copies be the current one meanwhile."""
        ...

    def copied(self, tensor: Tensor) -> Tensor:
        """Begin a copy to the device, on the current stream."""
        ...

    def event(self) -> Any:
        """What is done when all is done that the current stream has begun."""
        ...

    def is_done(self, event: Any) -> bool:
        """Whether it is."""
        ...

    def wait(self, event: Any) -> None:
        """Let the current stream wait for it; the processor does not."""
        ...

    def keep(self, tensor: Tensor) -> None:
        """Keep the tensor's memory until the current stream has done what it has begun by then."""
        ...

    def moved(self, value: Any) -> Any:
        """What an object's own `.to` makes of it, on the current stream."""
        ...


class CudaSide:
    """A GPU of torch's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def current(self) -> AbstractContextManager[Any]:
        """See `Side`."""
        return torch.cuda.device(self._device)

    def pinned(self, tensor: Tensor) -> Tensor:
        """See `Side`."""
        return tensor if tensor.is_pinned() else tensor.pin_memory()

    def copying(self) -> AbstractContextManager[Any]:
        """See `Side`."""
        stream: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return stream

    def copied(self, tensor: Tensor) -> Tensor:
        """See `Side`."""
        return tensor.to(self._device, non_blocking=True)

    def event(self) -> Any:
        """See `Side`."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def is_done(self, event: Any) -> bool:
        """See `Side`."""
        return bool(event.query())

    def wait(self, event: Any) -> None:
        """See `Side`."""
        torch.cuda.current_stream(self._device).wait_event(event)

    def keep(self, tensor: Tensor) -> None:
        """See `Side`."""
        tensor.record_stream(torch.cuda.current_stream(self._device))

    def moved(self, value: Any) -> Any:
        """See `Side`."""
        return value.to(self._device)


def checked_device(device: Any) -> torch.device | None:
    """What `device=` names, not yet looked for; raises UsageError for what is no such device."""
    if device is None:
        return None
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(
            f'device= is "cuda", "cuda:1", "cpu" or a torch.device, and was {device!r} ({error})'
        ) from None
    if named.type not in {"cuda", "cpu"}:
        raise UsageError(
            f"batches are copied ahead to GPUs of torch's device type cuda, and device= was "
            f"{device!r}: leave it out and move the batches yourself"
        )
    return named


def side_of(device: torch.device | None) -> Side | None:
    """The device as it is now, a "cuda" without a number being the current one; None for the host.

    Raises UsageError for a GPU that this machine does not have, where it has others.
    """
    if device is None or device.type == "cpu":
        return None
    if not torch.cuda.is_available():
        log.warning(_NO_GPU, str(device))
        return None
    number = torch.cuda.current_device() if str(device) == "cuda" else device.index
    if number >= torch.cuda.device_count():
        raise UsageError(
            f"device= names a GPU of this machine, which has {torch.cuda.device_count()} that this "
            f"process may use, and was {str(device)!r}: give one of them, or 'cuda' for the current"
        )
    return CudaSide(torch.device("cuda", number))


class ToPin:
    """A batch on its way through DataLoader's thread, which pins it: as what it is.

    By itself torch would make lists of tuples, and leave out what dataclasses hold.
    """

    __slots__ = ("batch",)

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __reduce__(self) -> tuple[type[ToPin], tuple[Any]]:
        return ToPin, (self.batch,)

    def pin_memory(self, *_: Any) -> ToPin:
        """The same in pinned memory; torch calls this."""
        return ToPin(rebuilt(self.batch, lambda tensor: tensor.pin_memory(), lambda value: value))


@dataclasses.dataclass(slots=True, eq=False)
class _Load:
    """A batch on its way: what it was and is, what is to be kept, and when it will be there."""

    carried: Any
    batch: Any
    tensors: list[Tensor]
    hosts: list[Tensor]
    late: bool = False
    event: Any = None


class Ahead(Iterator[Any]):
    """Batches, each copied to a device before its turn.

    batches: what the engine gives; depth: how many to have there besides the one that is given;
    may_take: whether the batch of a number can be had without waiting for its making: a loop never
    waits for more than its own batch. What is raised for a batch comes in its turn.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        side: Side,
        *,
        depth: int,
        may_take: Callable[[int], bool],
    ) -> None:
        self._batches = batches
        self._side = side
        self._depth = depth
        self._may_take = may_take
        self._num_taken = 0
        self._loads: deque[_Load] = deque()
        self._sent: deque[tuple[Any, list[Tensor]]] = deque()  # whose host memory may be read yet
        self._ended_by: Exception | None = None

    def __next__(self) -> Any:
        """The next batch, on the device for whatever the current stream does from now on."""
        if not self._loads:
            self._take()
        if not self._loads:
            raise self._ended_by or AssertionError
        load = self._loads.popleft()
        while len(self._loads) < self._depth and self._may_take(self._num_taken):
            if not self._take():
                break
        return self._given(load)

    def _take(self) -> bool:
        """Begin to copy one batch more; False where there is none."""
        if self._ended_by is not None:
            return False
        try:
            carried = next(self._batches)
            self._loads.append(self._begun(carried))
        except StopIteration:  # not kept: its traceback would keep the batch that is being given
            self._ended_by = StopIteration()
            return False
        except Exception as error:  # noqa: BLE001 - raised when its turn comes
            self._ended_by = error
            return False
        self._num_taken += 1
        return True

    def _begun(self, carried: Any) -> _Load:
        is_carrier = type(carried) is Carrier
        load = _Load(carried if is_carrier else None, None, [], [])
        side = self._side

        def copied(tensor: Tensor) -> Tensor:
            if tensor.device.type != "cpu":
                return tensor
            pinned = side.pinned(tensor)
            there = side.copied(pinned)
            load.hosts.append(pinned)
            load.tensors.append(there)
            return there

        def later(value: Any) -> Any:
            load.late = True
            return value

        batch = carried.batch if is_carrier else carried
        if type(batch) is ToPin:
            batch = batch.batch
        with side.copying():
            load.batch = rebuilt(batch, copied, later)
            load.event = side.event()
        return load

    def _given(self, load: _Load) -> Any:
        side = self._side
        side.wait(load.event)
        for tensor in load.tensors:
            side.keep(tensor)
        self._sent.append((load.event, load.hosts))
        while self._sent and side.is_done(self._sent[0][0]):
            self._sent.popleft()
        batch = load.batch
        if load.late:
            batch = rebuilt(batch, lambda tensor: tensor, side.moved)
        return batch if load.carried is None else load.carried._replace(batch=batch)


def rebuilt(value: Any, tensor: Callable[[Tensor], Tensor], other: Callable[[Any], Any]) -> Any:
    """A batch with every tensor replaced by `tensor` of it, and objects with `.to` by `other`.

    Containers are made anew, and no batch is changed; what is neither stays the same object.
    """

    def again(each: Any) -> Any:
        return rebuilt(each, tensor, other)

    kind, result = type(value), value
    if isinstance(value, Tensor):
        result = tensor(value)
    elif isinstance(value, Mapping):
        result = _mapping(value, again)
    elif kind is list or kind is tuple:
        result = value if set(map(type, value)) <= _HOST_ONLY else kind(map(again, value))
    elif callable(getattr(value, "to", None)) and not isinstance(value, type):
        result = other(value)
    elif isinstance(value, tuple) and hasattr(value, "_make"):
        result = value._make(map(again, value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        result = _dataclass(value, again)
    return result


def _mapping(value: Mapping[Any, Any], again: Callable[[Any], Any]) -> Any:
    entries = {name: again(each) for name, each in value.items()}
    if type(value) is dict or not isinstance(value, MutableMapping):
        return entries
    twin = copy.copy(value)  # with whatever else it holds: a default, a method `to`
    twin.update(entries)
    return twin


def _dataclass(value: Any, again: Callable[[Any], Any]) -> Any:
    twin = copy.copy(value)
    for each in dataclasses.fields(value):
        if hasattr(value, each.name):
            object.__setattr__(twin, each.name, again(getattr(value, each.name)))
    return twin
