"""Compact against dense for the networks of transformers: ViT, BERT and MobileNetV2, filters and heads, in one run.

Claim: none beyond the table; parameters and latency of ``gp.compact`` after 50 and 75 % of the filters, or of the heads
of every attention layer, have been pruned, as ratios to the dense network. ViT, 12 layers of 192 with 4 heads, and
MobileNetV2 at 224 × 224, BERT of 4 layers of 256 with 8 heads at 128 tokens, from configurations with random weights:
latency does not depend on what a network has learnt.

    python benchmarks/architectures.py [--clock cpu|wall] [--threads 1] [--rounds 7] [--batch 1 8] [--out FILE]

All forms of a network are timed in interleaved rounds; medians are printed. Heads are whole heads set to zero: the rows
of q, k and v and the columns that read them.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import gibbsprune as gp
from compaction import CLOCKS, medians, parameters

HEADS = {"vit": 4, "bert": 8}
WIDTH = {"vit": 48, "bert": 32}


def vit() -> tuple[nn.Module, Callable[[int], dict[str, Tensor]]]:
    config = transformers.ViTConfig(hidden_size=192, intermediate_size=768, num_attention_heads=4, num_labels=10)
    return transformers.ViTForImageClassification(config), images


def bert() -> tuple[nn.Module, Callable[[int], dict[str, Tensor]]]:
    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8
    )
    return transformers.BertForSequenceClassification(config), lambda n: {"input_ids": torch.randint(3, 1000, (n, 128))}


def mobilenet() -> tuple[nn.Module, Callable[[int], dict[str, Tensor]]]:
    return transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config(num_labels=10)), images


def images(batch: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch, 3, 224, 224)}


MADE = {"vit": vit, "bert": bert, "mobilenetv2": mobilenet}


@torch.no_grad()
def without_heads(model: nn.Module, name: str, sparsity: float) -> nn.Module:
    """The network with that share of the heads of every attention layer set to zero."""
    heads, width = HEADS[name], WIDTH[name]
    gone = round(sparsity * heads) * width
    for path, layer in model.named_modules():
        last = path.rpartition(".")[2]
        if isinstance(layer, nn.Linear) and last in ("query", "key", "value", "q_proj", "k_proj", "v_proj"):
            layer.weight[:gone], layer.bias[:gone] = 0, 0
        elif isinstance(layer, nn.Linear) and path.endswith(("attention.output.dense", "o_proj")):
            layer.weight[:, :gone] = 0
    return model.eval()


def without_filters(model: nn.Module, example: dict[str, Tensor], sparsity: float) -> nn.Module:
    return (
        gp.GibbsPruner(model, sparsity, structure="filter", law="annealed", example_inputs=example)
        .finalize("converged")
        .eval()
    )


def forms(name: str) -> tuple[dict[str, nn.Module], Callable[[int], dict[str, Tensor]], dict[str, float]]:
    """The dense network and its compact forms, its inputs, and what compaction changed of the outputs."""
    torch.manual_seed(0)
    dense, inputs = MADE[name]()
    found, differences = {"dense": dense.eval()}, {}
    for sparsity in (0.5, 0.75):
        for what in ("filters", "heads"):
            if what == "heads" and name not in HEADS:
                continue
            torch.manual_seed(0)
            model, example = MADE[name]()[0], inputs(2)
            if what == "filters":
                model = without_filters(model, example, sparsity)
            else:
                model = without_heads(model, name, sparsity)
            title = f"{what}, {100 * sparsity:g} %"
            for prefer in ("size", "speed"):
                small: Any = gp.compact(model, example, prefer=prefer)
                assert "the whole model" not in small.report.left, small.report
                found[f"{title}, for {prefer}"] = small
                differences[f"{title}, for {prefer}"] = small.report.difference
    return found, inputs, differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", default="cpu", choices=CLOCKS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--out", help="write the table as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "clock": options.clock,
        "threads": options.threads,
        "rounds": options.rounds,
        "networks": {},
    }
    for name in MADE:
        networks, inputs, differences = forms(name)
        whole = parameters(networks["dense"])
        rows = {form: {"parameters": round(parameters(m) / whole, 3)} for form, m in networks.items()}
        for batch in options.batch:
            given = inputs(batch)
            ways: dict[str, Callable[[], Any]] = {form: partial(m, **given) for form, m in networks.items()}
            with torch.inference_mode():
                took = medians(ways, options.rounds, CLOCKS[options.clock])
            for form, milliseconds in took.items():
                rows[form][f"ms at batch {batch}"] = milliseconds
                rows[form][f"ratio at batch {batch}"] = round(milliseconds / took["dense"], 3)
        for form, difference in differences.items():
            rows[form]["difference"] = difference
        table["networks"][name] = {"parameters": whole, "forms": rows}
        print(f"\n{name}, {whole:,} parameters", flush=True)
        for form, row in rows.items():
            ratios = "  ".join(f"{row[f'ratio at batch {b}']:6.3f} at batch {b}" for b in options.batch)
            print(f"  {form:24} parameters {row['parameters']:6.3f}  latency {ratios}", flush=True)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(table, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
