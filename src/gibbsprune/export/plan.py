"""What is known of each tensor of a captured network, what is wanted of it, and what is kept.

- *facts*, found forwards: an atom (see :mod:`~gibbsprune.export.channels`) is live, or constant. So is the output of a
  removed filter after batch norm and ReLU.
- *wanted*, found backwards: the atoms that some consumer reads. A live one that all consumers multiply by zero is
  not wanted; a constant one is folded into its consumers, and wanted only where it cannot be.
- *kept*: the grid of the smaller tensor. Every wanted atom is kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from .aten import attribute, shape, varies
from .channels import (
    Dims,
    Facts,
    LeftAlone,
    coordinates,
    mask_of,
    numbers,
    place,
    product,
    refined_grid,
    rows,
    whole,
)
from .parts import Scatter

DENSE_ENOUGH = 0.8  # from this share of live channels on, computing the few constants is cheaper than scattering
SCATTER_COST = 128  # multiply-adds at one place that cost as much as scattering one channel (benchmarks/README.md)
FOLDED = 1 << 24  # entries of a tensor computed from parameters alone, up to which its values are looked at


def ease(target: Tensor, live: Tensor) -> Tensor:
    """Of ``target``, the live ones to ask for; all of it where nearly all are live."""
    wanted = target & live
    return target if wanted.sum() >= DENSE_ENOUGH * target.sum() else wanted


def carrier(facts: Facts, among: Tensor) -> int:
    """The constant atom of the largest size among these."""
    return int(facts.value.abs().masked_fill(~(among & ~facts.live), -1).argmax())


class Plan:
    """Facts, wants and kept atoms of every node, and the edits that make the graph smaller."""

    def __init__(self, module: fx.GraphModule, device: torch.device, dtype: torch.dtype, prefer: str) -> None:
        self.module, self.device, self.dtype, self.prefer = module, device, dtype, prefer
        self.rules: dict[fx.Node, Any] = {}
        self.facts: dict[fx.Node, Facts] = {}
        self.wanted: dict[fx.Node, Tensor] = {}
        self.kept: dict[fx.Node, Tensor] = {}
        self.constants: dict[fx.Node, Tensor] = {}  # values that depend on no input
        self.after: list[Callable[[], None]] = []  # edits that replace one node by another
        self.named: set[str] = set()  # weights that have been put in
        reads = [n for n in module.graph.nodes if n.op == "get_attr"]
        self.readers = Counter(id(attribute(module, n)) for n in reads for _ in n.users)

    def constant(self, node: fx.Node) -> Tensor | None:
        """The value of a node that depends on parameters and numbers alone."""
        if node.op == "get_attr":
            value = attribute(self.module, node)
            return value.detach() if isinstance(value, Tensor) else None
        if node.op != "call_function" or not all(part in self.constants for part in node.all_input_nodes):
            return None
        val = node.meta.get("val")
        if not isinstance(val, Tensor) or not all(isinstance(s, int) for s in val.shape) or val.numel() > FOLDED:
            return None
        if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in node.target.tags:
            return None
        return _evaluated(node, self.constants)

    def facts_of(self, node: fx.Node) -> Facts:
        """What is known of a node; of one without facts, that it is live throughout."""
        return self.facts[node] if node in self.facts else Facts.unknown(shape(node))

    def kept_of(self, node: fx.Node) -> Tensor:
        return self.kept[node] if node in self.kept else whole(self.facts_of(node).live.shape)

    def want(self, node: fx.Node, atoms: Tensor) -> None:
        if node in self.facts:
            atoms = atoms.reshape(self.facts[node].live.shape)
            before = self.wanted.get(node)
            self.wanted[node] = atoms if before is None else before | atoms

    def rounded(self, mask: Tensor) -> Tensor:
        """A mask that makes rows of equal length: for speed they are computed so, for size they are filled up later."""
        return mask if self.prefer == "size" else mask_of(rows(mask), mask.shape)

    def settle(self, node: fx.Node) -> None:
        """All consumers have spoken. A tensor that is read keeps one atom at least, for its shape."""
        if node not in self.facts:
            return
        facts = self.facts[node]
        wanted = self.wanted.setdefault(node, torch.zeros_like(facts.live))
        if not wanted.any():
            wanted = wanted.clone()
            wanted.view(-1)[carrier(facts, ~facts.live) if not facts.live.all() else 0] = True
            self.wanted[node] = wanted

    # how a consumer sees a tensor

    def seen(self, node: fx.Node, dims: Dims, spread: Sequence[int] = ()) -> tuple[Facts, Tensor]:
        """Facts and kept grid of a node in finer factors, told apart along the ``spread`` axes too.

        Where its rows are of several lengths, the grid is that of all its atoms, which :meth:`aligned` then restores.
        """
        facts, grid = self.facts_of(node).recast(dims), self.kept_of(node)
        sizes = iter(n for n, old in zip(grid.shape, self.facts_of(node).live.shape) if old > 1)
        grid = grid.reshape([next(sizes) if n > 1 else 1 for n in facts.live.shape])
        finer = facts.refine(dims)
        found = refined_grid(grid, facts, finer)
        grid = found if found is not None else torch.full([1] * finer.live.dim(), -1)
        full = finer.spread(spread)
        if found is not None and full.live.shape != finer.live.shape:
            coords = coordinates(grid, finer.live.shape)
            for axis in spread:
                if finer.live.shape[axis] == 1 and full.live.shape[axis] > 1:
                    coords[axis] = whole([full.live.shape[axis]]).view(
                        [-1 if a == axis else 1 for a in range(grid.dim())]
                    )
            grid = numbers(coords, full.live.shape)
        return full, grid

    def aligned(self, user: fx.Node, node: fx.Node, seen: tuple[Facts, Tensor], target: Tensor) -> fx.Node:
        """A node, before ``user``, with exactly the ``target`` atoms of ``node``; constants filled in."""
        facts, grid = seen
        if torch.equal(grid, target):
            return node
        if grid.shape == target.shape == torch.Size([1] * grid.dim()):
            return node
        if int(grid.flatten()[0]) < 0:
            grid = whole(facts.live.shape)
            node = self.aligned(
                user, node, (self.facts_of(node), self.kept_of(node)), whole(self.facts_of(node).live.shape)
            )
            return self.aligned(user, node, (facts, grid), target)
        free = varies(node)
        for dim, factors in enumerate(facts.dims):
            if facts.tracked(dim) and free[dim] and len([f for f in factors if f > 1]) > 1:
                raise LeftAlone("its channels share a dimension with one that varies, such as the batch", node.name)
        return self.insert(user, _moves(facts, grid, target, self.dtype), node)

    def restored(self, user: fx.Node, node: fx.Node) -> fx.Node:
        """The node with all of its atoms."""
        facts = self.facts_of(node)
        return self.aligned(user, node, (facts, self.kept_of(node)), whole(facts.live.shape))

    def line(self, user: fx.Node, node: fx.Node, dim: int) -> tuple[fx.Node, Tensor]:
        """A node with the atoms kept along ``dim``, all of them along the others, and their old indices."""
        facts, grid = self.facts_of(node), self.kept_of(node)
        found, others = place(grid, facts, dim), [d for d in range(len(facts.dims)) if d != dim and facts.tracked(d)]
        if found is not None and all(_is_all(place(grid, facts, d), facts.dims[d]) for d in others):
            return node, found
        mask = mask_of(grid, facts.live.shape)
        for d in others:
            for axis in facts.axes(d):
                mask = mask.any(axis, True).expand(mask.shape)
        target = product(mask)
        line = place(target, facts, dim)
        assert line is not None
        return self.aligned(user, node, (facts, grid), target), line

    def picked(self, user: fx.Node, node: fx.Node, dim: int, facts: Facts, line: Tensor, target: Tensor) -> fx.Node:
        """A node laid out by ``line`` along ``dim``, of which those are the facts, laid out by ``target`` instead."""
        if torch.equal(line, target):
            return node
        ones = [1] * dim
        moved = Facts((*((1,) for _ in ones), *facts.dims), facts.live.view(*ones, -1), facts.value.view(*ones, -1))
        return self.insert(user, _moves(moved, line.view(*ones, -1), target.view(*ones, -1), self.dtype), node)

    # edits

    def insert(self, user: fx.Node, made: nn.Module, *args: fx.Node) -> fx.Node:
        """A new node before ``user`` that calls a module."""
        name = f"channels_{user.name}"
        while hasattr(self.module, name):
            name += "_"
        self.module.add_module(name, made.to(self.device))
        with self.module.graph.inserting_before(user):
            new = self.module.graph.call_module(name, args)
        new.meta = dict(args[0].meta)
        return new

    def replace(self, node: fx.Node, made: nn.Module, *args: fx.Node) -> None:
        """Let ``node`` call a module from now on."""
        new = self.insert(node, made, *args)
        node.op, node.target, node.args, node.kwargs = "call_module", new.target, new.args, {}
        self.module.graph.erase_node(new)

    def cut(self, node: fx.Node, facts: Facts, grid: Tensor, target: Tensor) -> fx.Node:
        """A parameter that one operation reads, with the ``target`` atoms alone."""
        old = attribute(self.module, node)
        with torch.no_grad():
            new = _moves(facts, grid, target, old.dtype).to(old.device)(old.detach()).contiguous()
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(new, requires_grad=old.requires_grad)
        set_attribute(self.module, str(node.target), new)
        return node

    def call(self, user: fx.Node, target: Any, *args: Any) -> fx.Node:
        with self.module.graph.inserting_before(user):
            return self.module.graph.call_function(target, args)

    def tensor(self, node: Any) -> Tensor | None:
        """A weight in float64, on the CPU; None for None."""
        if node is None:
            return None
        if node not in self.constants:
            raise LeftAlone("its weight depends on the inputs")
        return self.constants[node].cpu().double()

    def put(self, user: fx.Node, index: int, name: str, value: Tensor | None) -> None:
        """Let an argument of ``user`` read these new values, as a parameter of that name."""
        old: Any = user.args[index]
        args: list[Any] = list(user.args)
        if value is None:
            args[index] = None
        else:
            like = attribute(self.module, old) if isinstance(old, fx.Node) and old.op == "get_attr" else None
            target = str(old.target) if like is not None else self._free(name)
            kind = (
                like.dtype if like is not None else self.constants[old].dtype if old in self.constants else self.dtype
            )
            new: Any = value.to(kind).to(self.device).contiguous()
            if like is None or isinstance(like, nn.Parameter):
                new = nn.Parameter(new, requires_grad=like is None or like.requires_grad)
            set_attribute(self.module, target, new)
            self.named.add(target)
            with self.module.graph.inserting_before(user):
                args[index] = self.module.graph.get_attr(target)
            self.constants[args[index]] = value
        user.args = tuple(args)

    def _free(self, name: str) -> str:
        """A name for a computed weight: that given, unless others have it, as where several are cut from one."""
        names = dict(self.module.named_parameters(remove_duplicate=False))
        while name in self.named or (name in names and self.readers[id(names[name])] > 1):
            name += "_"
        return name


def set_attribute(module: nn.Module, name: str, value: Tensor) -> None:
    owner, _, last = name.rpartition(".")
    for part in owner.split(".") if owner else []:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = getattr(module, part)
    if isinstance(value, nn.Parameter) or last in module._buffers or last in module._parameters:
        if last in module._buffers and isinstance(value, nn.Parameter):
            del module._buffers[last]
        setattr(module, last, value)
    else:
        module.register_buffer(last, value)


def _evaluated(node: fx.Node, values: dict[fx.Node, Tensor]) -> Tensor | None:
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda part: values[part])
    try:
        found = node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception:  # an operator that torch has for graphs alone
        return None
    return found if isinstance(found, Tensor) else None


def _is_all(found: Tensor | None, factors: Sequence[int]) -> bool:
    return found is not None and torch.equal(found, torch.arange(math.prod(factors)))


def _moves(facts: Facts, grid: Tensor, target: Tensor, dtype: torch.dtype) -> Scatter:
    """The module that brings a tensor laid out by ``grid`` into the layout of ``target``."""
    dims = [dim for dim in range(len(facts.dims)) if facts.tracked(dim)]
    axes = [axis for dim in dims for axis in facts.axes(dim)]
    plain = [axis for axis in axes if facts.live.shape[axis] == 1]
    stride = math.prod(facts.factors[axis] for axis in plain)

    def addresses(numbered: Tensor) -> Tensor:
        total = numbered * stride
        step = 1
        for axis in reversed(plain):
            size = facts.factors[axis]
            total = total + step * torch.arange(size).view([-1 if a == axis else 1 for a in range(numbered.dim())])
            step *= size
        return total

    before, after = addresses(grid), addresses(target)
    where = torch.full((facts.live.numel() * stride,), -1)
    where[before.flatten()] = torch.arange(before.numel())
    source = where[after.flatten()]
    base = facts.value.flatten()[after.flatten() // stride]
    held = source >= 0
    source = source[held]
    sizes = [math.prod(after.shape[axis] for axis in facts.axes(dim)) for dim in dims]
    everything = len(source) == before.numel() and torch.equal(source, torch.arange(len(source)))
    position = None if held.all() else held.nonzero().flatten()
    return Scatter(dims, sizes, base.to(dtype), None if everything else source, position)
