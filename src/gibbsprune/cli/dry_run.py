"""``gibbsprune train --dry-run``: what a run would do, and how long it would take."""

from __future__ import annotations

from .. import data
from ..selection import select
from ..structures import as_structure
from ..summary import covers, left_out, other_weights
from ..text import clock, percent, table
from ..training.environment import resolve_device
from ..training.fleet import Fleet
from ..training.folder import fleet_name
from ..training.spec import RunSpec


def show_plan(specs: list[RunSpec], device: str, steps: int = 2) -> None:
    """Print the layers, the parameters and an estimate of the time from a few steps; nothing is written."""
    arrays = data.load(specs[0].data)
    fleet = Fleet(specs, arrays, device=resolve_device(device))
    layers = [layer for layer in fleet.plan() if layer["run"] == specs[0].seed]
    print(f"{fleet_name(specs)}")
    print(f"data        {len(arrays.x_train):,} training and {len(arrays.x_test):,} test images")
    parameters = sum(p.numel() for p in fleet.model(0).parameters())
    print(f"parameters  {parameters:,}")
    if layers:
        weights = sum(layer["weights"] for layer in layers)
        kept = sum(layer["kept"] for layer in layers)
        share = percent(1 - kept / weights)
        print(f"pruned      {weights - kept:,} of {weights:,} weights in {len(layers)} layers ({share})")
        rows = [
            [
                layer["name"],
                layer["kind"],
                f"{layer['weights']:,}",
                f"{layer['neighbourhoods']:,}",
                percent(layer["target"]),
                f"{layer['kept']:,}",
            ]
            for layer in layers
        ]
        print(f"            {covers(weights, parameters)}")
        if (way := specs[0].setting("allocation")) not in (None, "uniform"):
            print(f"            layers share it ({way}), by what they learn or their shape: below all have the same")
        print()
        print(table(["layer", "kind", "weights", "neighbourhoods", "target", "weights kept"], rows, left=2))
        print()
        spec, model = specs[0], fleet.model(0)
        chosen, skipped = select(model, as_structure(spec.structure), spec.include, spec.exclude)
        others, vectors = other_weights(model, chosen.values())
        if lines := left_out(skipped, others, vectors):
            print("\n".join([*lines, ""]))
    pace = fleet.trial_steps(steps)
    total = pace * fleet.steps_per_epoch * fleet.epochs
    runs = "" if len(specs) == 1 else f" for {len(specs)} runs at once"
    print(f"time        about {clock(total)}: {fleet.epochs} epochs of {fleet.steps_per_epoch} steps,")
    print(f"            {1000 * pace:.1f} ms per step{runs} (from {steps} steps, tests not included)")
