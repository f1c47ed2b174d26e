"""Places in a traced network where one call could do the work of several: a layer, a sum behind it, a ReLU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from gibbsprune.export.parts import AddBorders
from gibbsprune.export.reuse import is_relu, is_sum


@dataclass(frozen=True)
class Site:
    """A layer and what follows it at once: a sum with ``other``, a ReLU."""

    layer: Any
    nodes: tuple[fx.Node, ...]
    other: fx.Node | None
    relu: bool

    def replace(self, module: fx.GraphModule, executor: nn.Module) -> None:
        """Let one node at the place of the last compute all of them."""
        first, last = self.nodes[0], self.nodes[-1]
        name = f"fast_{first.name}"
        module.add_module(name, executor)
        with module.graph.inserting_before(last):  # the sum's other part may have been replaced since
            others = [part for part in self.nodes[1].args if part is not first] if self.other is not None else []
            new = module.graph.call_module(name, (first.args[0], *others))
        new.meta = dict(last.meta)
        last.replace_all_uses_with(new)
        for node in reversed(self.nodes):
            module.graph.erase_node(node)


def site_at(module: fx.GraphModule, node: fx.Node) -> Site | None:
    """The site that begins with ``node``, if it is a layer with weights."""
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    layer = module.get_submodule(str(node.target))
    if type(layer) not in (nn.Conv2d, nn.Linear):
        return None
    nodes, other = [node], None
    follower = _only_user(node)
    if follower is not None and is_sum(follower):
        parts = [part for part in follower.args if part is not node]
        same = len(parts) == 1 and isinstance(parts[0], fx.Node)
        if same and _shape(parts[0]) == _shape(node):
            other = parts[0]
            nodes.append(follower)
            follower = _only_user(follower)
    relu = is_relu(follower)
    if relu:
        nodes.append(follower)  # type: ignore[arg-type]
    return Site(layer, tuple(nodes), other, relu)  # type: ignore[arg-type]


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _shape(node: Any) -> Any:
    value = node.meta.get("val")
    return str(tuple(value.shape)) if isinstance(value, Tensor) else None


def move_borders(module: fx.GraphModule) -> None:
    """Let a map at borders go into the other part of a sum, so that the convolution stands beside the sum."""
    for node in list(module.graph.nodes):
        layer = module.get_submodule(node.target) if node.op == "call_module" else None
        total = _only_user(node) if isinstance(layer, AddBorders) else None
        if total is None or not is_sum(total):
            continue
        convolution, x = node.args
        others = [part for part in total.args if part is not node]
        if len(others) == 1 and isinstance(others[0], fx.Node) and _shape(others[0]) == _shape(node):
            with module.graph.inserting_before(total):
                moved = module.graph.call_module(node.target, (others[0], x))
            moved.meta = dict(node.meta)
            total.args = (convolution, moved)
            module.graph.erase_node(node)
    module.recompile()
