"""The same masked networks made smaller here and by Torch-Pruning: parameters left, and what becomes of the output.

Claim: a compact network computes what the masked one does, on every network; Torch-Pruning removes whole groups of
coupled channels by magnitude, which changes the output, and does not run on some networks.

    python benchmarks/beside_torch_pruning.py [--sparsity 0.5] [--out FILE]

The networks are those of the tests (``tests/export_zoo.py``, and small ones of transformers): half of the filters, or
rows, of their layers are zero, by ``GibbsPruner``. ``compact`` gets such a network; Torch-Pruning gets the same one and
the same share of channels to remove, by group magnitude, with the layers whose outputs leave the network spared. Both
are compared with the masked network at the same inputs: max |difference| / max |output|. CPU, no training: these are no
timings.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import json
import logging
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import gibbsprune as gp
from gibbsprune.export.equality import difference
from gibbsprune.flow import leaving
from gibbsprune.looking import arguments, plain_eval

ROOT = Path(__file__).parents[1]
PATIENCE = 60  # seconds for Torch-Pruning, where compact takes a few


def networks(sparsity: float) -> Iterator[tuple[str, nn.Module, Any]]:
    """Name, masked network, inputs."""
    sys.path.insert(0, str(ROOT / "tests"))
    from export_zoo import ZOO, prune, randomise

    for name, (make, shape) in ZOO.items():
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        model = randomise(make(), generator)
        prune(model, "filter", sparsity, generator)
        yield name, model.eval(), torch.randn(shape, generator=generator)
    try:
        import test_export_transformers as small
    except BaseException:  # pytest's own, where transformers is missing
        return
    for name in small.MADE:
        model, inputs = small.made(name)
        pruner = gp.GibbsPruner(
            model, sparsity, structure="filter", law="annealed", exclude=small.EXCLUDED.get(name), example_inputs=inputs
        )
        yield f"{name} (transformers)", pruner.finalize("converged").eval(), inputs


def answer(model: nn.Module, inputs: Any) -> list[Tensor]:
    args, kwargs = arguments(copy.deepcopy(inputs))
    with torch.no_grad(), plain_eval(model):
        return [y for y in pytree.tree_leaves(_plain(model(*args, **kwargs))) if isinstance(y, Tensor)]


def _plain(found: Any) -> Any:
    return dict(found) if hasattr(found, "items") else found


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def by_torch_pruning(model: nn.Module, inputs: Any, sparsity: float) -> nn.Module:
    import torch_pruning as tp

    pruned, (args, kwargs) = copy.deepcopy(model), arguments(inputs)
    signal.alarm(PATIENCE)
    spared = [pruned.get_submodule(name) for name in leaving(model, inputs)]
    with plain_eval(pruned):
        tp.pruner.MagnitudePruner(
            pruned,
            example_inputs=kwargs or args,
            importance=tp.importance.GroupMagnitudeImportance(p=2),
            pruning_ratio=sparsity,
            ignored_layers=spared,
            output_transform=lambda found: sum(y.float().sum() for y in pytree.tree_leaves(_plain(found))),
        ).step()
    signal.alarm(0)
    return pruned


def _too_long(*_: object) -> None:
    raise TimeoutError(f"not done after {PATIENCE} s")


def row(name: str, model: nn.Module, inputs: Any, sparsity: float) -> dict[str, Any]:
    expected = answer(model, inputs)
    small = gp.compact(model, inputs)
    found: dict[str, Any] = {"network": name, "dense": count(model), "compact": count(small)}
    found["compact_difference"] = difference(expected, answer(small, inputs))
    try:
        theirs = by_torch_pruning(model, inputs, sparsity)
        found["torch_pruning"] = count(theirs)
        others = answer(theirs, inputs)
        same = [a.shape for a in expected] == [b.shape for b in others]
        found["torch_pruning_difference"] = difference(expected, others) if same else None
        found["note"] = "" if same else "its outputs have other shapes"
    except Exception as error:  # also TimeoutError; whatever it says of a network that it does not take
        found["note"] = f"does not run: {type(error).__name__}: {str(error).splitlines()[0][:60] if str(error) else ''}"
    return found


def shown(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sparsity", type=float, default=0.5)
    parser.add_argument("--out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_long)
    rows = []
    print("| network | parameters | compact | differs by | Torch-Pruning | differs by | |")
    print("|---|---|---|---|---|---|---|")
    for name, model, inputs in networks(options.sparsity):
        rows.append(found := row(name, model, inputs, options.sparsity))
        print(
            f"| {name} | {found['dense']:,} | {found['compact']:,} | {found['compact_difference']:.0e} | "
            f"{shown(found.get('torch_pruning'), ',')} | {shown(found.get('torch_pruning_difference'), '.2f')} | "
            f"{found['note']} |",
            flush=True,
        )
    versions = {name: importlib.metadata.version(name) for name in ("torch", "torch-pruning")}
    if options.out:
        Path(options.out).write_text(
            json.dumps({"sparsity": options.sparsity, "versions": versions, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
