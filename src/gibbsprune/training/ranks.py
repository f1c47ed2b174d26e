"""The processes that train one run together, as ``torchrun`` starts them; for a single process all of it is nothing.

Every rank has the whole network, and the same weights, masks and random streams. Of each global batch a rank takes its
own rows; gradients, losses and counts are summed over the ranks. Only rank 0 writes files and shows progress.
"""

from __future__ import annotations

import datetime
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..checks import check_number, number
from ..data.arrays import Arrays
from ..distributed import digest, unequal
from ..errors import UserError
from .environment import resolve_device

WAIT = 1800.0  # seconds that a process waits for an answer of the others


class LostRank(UserError):
    """Another process of the run has ended, so that this one cannot go on."""


@dataclass(frozen=True)
class Ranks:
    """This process among ``size``; ``device`` is where tensors must lie that are sent, ``seconds`` how long to wait."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  it cannot be changed
    seconds: float = WAIT

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def rows(self, batch: int) -> range:
        """Which rows of a global batch are this rank's."""
        if self.size > 1 and batch < 2 * self.size:
            raise UserError(f"a batch of {batch} cannot be divided among {self.size} processes: each needs two images")
        return range(self.rank, batch, self.size)

    def sum_(self, tensor: Tensor) -> None:
        """Sums a tensor over the ranks, in place."""
        if self.size > 1:
            with self._together():
                dist.all_reduce(tensor)

    @torch.no_grad()
    def average_(self, tensors: Iterable[Tensor]) -> None:
        """Averages tensors over the ranks, in place; of those that are not of floats, rank 0's count."""
        if self.size == 1:
            return
        tensors = list(tensors)
        means = [tensor for tensor in tensors if tensor.is_floating_point()]
        if means:
            flat = torch.cat([tensor.detach().reshape(-1).double() for tensor in means])
            self.sum_(flat)
            for tensor, mean in zip(means, (flat / self.size).split([tensor.numel() for tensor in means])):
                tensor.copy_(mean.view(tensor.shape))
        for tensor in tensors:
            if not tensor.is_floating_point():
                with self._together():
                    dist.broadcast(tensor, 0)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on some rank."""
        if self.size == 1:
            return flag
        count = torch.tensor(float(flag), device=self.device)
        self.sum_(count)
        return bool(count > 0)

    def shared(self, value: Any = None) -> Any:
        """Rank 0's value (nested dicts and lists of tensors and plain values) on every rank, tensors on the CPU."""
        if self.size == 1:
            return value
        buffer = io.BytesIO()
        torch.save(value, buffer)
        content = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8).to(self.device)
        length = torch.tensor(content.numel(), device=self.device)
        with self._together():
            dist.broadcast(length, 0)
            if not self.first:
                content = torch.empty(int(length), dtype=torch.uint8, device=self.device)
            dist.broadcast(content, 0)
        if self.first:
            return value
        return torch.load(io.BytesIO(content.cpu().numpy().tobytes()), map_location="cpu", weights_only=True)

    def compare(self, when: str, **parts: Sequence[Tensor]) -> None:
        """Raises on every rank unless all of them have the same tensors."""
        if self.size == 1:
            return
        with self._together():
            names = unequal({f"the {name}": digest(tensors) for name, tensors in parts.items()}, self.device)
        if names:
            raise UserError(
                f"the processes of this run differ in {' and '.join(names)} {when}: all of them need the same "
                "hardware, versions and data"
            )

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What the ranks do together fails when one of them is gone, or does not answer."""
        try:
            yield
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            if "timed out" in reason.lower() or "timeout" in reason.lower():
                raise LostRank(
                    f"another process of this run has not answered for {self.seconds:g} seconds (--rank-timeout); it "
                    "hangs or was stopped"
                ) from None
            raise LostRank(f"another process of this run has ended ({reason[:120]})") from None


ALONE = Ranks()


def launched() -> tuple[int, int]:
    """Rank and number of the processes that ``torchrun`` started this one with."""
    try:
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    except ValueError:
        raise UserError(
            f"RANK={os.environ.get('RANK')!r} and WORLD_SIZE={os.environ.get('WORLD_SIZE')!r} must be whole numbers, "
            "as torchrun sets them"
        ) from None
    return (rank, size) if size > 1 else (0, 1)


def rank_device(name: str) -> torch.device:
    """The device of this process: each of several on one machine takes a GPU of its own."""
    device = resolve_device(name)
    if launched()[1] == 1 or device.type == "cpu":
        return device
    if device.index is not None:
        raise UserError(f"device {name!r} is one GPU; of several processes each takes its own with --device cuda")
    return resolve_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")


@contextmanager
def join(device: str, seconds: float | None = None) -> Iterator[Ranks]:
    """Meets the other processes, each on a device of its own; whoever does not answer for so long is given up.

    From then on the first rank that fails says why, if only that it has no device, and the others end without a word.
    """
    rank, size = launched()
    seconds = WAIT if seconds is None else check_number("--rank-timeout", seconds, number(0, 1e9, above=True))
    if size == 1:
        yield ALONE
        return
    patience = datetime.timedelta(seconds=seconds)
    with _reaching(rank, size):
        store = next(iter(dist.rendezvous("env://")))[0]  # processes may start at different times
    try:
        where = rank_device(device)
        if where.type == "cuda":
            torch.cuda.set_device(where)
        with _reaching(rank, size):
            group = dist.PrefixStore("gibbsprune", store)
            backend = "nccl" if where.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=group, rank=rank, world_size=size, timeout=patience)
        yield Ranks(rank, size, where, seconds)
    except UserError as error:
        if _first_to_fail(store, rank):
            print(f"gibbsprune: {error}", file=sys.stderr, flush=True)
        if isinstance(error, LostRank):  # the group's own threads may abort the process while Python shuts down
            sys.stdout.flush()
            os._exit(2)
        raise SystemExit(2) from None
    except BaseException:
        _first_to_fail(store, rank)
        raise
    dist.destroy_process_group()


@contextmanager
def _reaching(rank: int, size: int) -> Iterator[None]:
    """What fails when the processes cannot meet."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"process {rank} of {size} cannot reach the others; start them with torchrun ({reason})"
        ) from None


def compare_data(ranks: Ranks, arrays: Arrays) -> None:
    """Refuses to train on data that are not the same everywhere."""
    ranks.compare("before training", data=[arrays.x_train, arrays.y_train, arrays.x_test, arrays.y_test])


def _first_to_fail(store: dist.Store, rank: int) -> bool:
    try:
        return store.compare_set("gibbsprune failed", "", str(rank)) == str(rank).encode()
    except RuntimeError:  # the store has gone with the process that kept it
        return True
