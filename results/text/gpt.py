"""A small GPT that writes Debian's documentation letter by letter, trained and pruned to 80 and 90 %.

    apt-get install debian-handbook debian-reference-en developers-reference debian-faq maint-guide
    python results/text/gpt.py [--seeds 0,1,2] [--out results/text] [--split test]

The text: the manuals' English pages in the letters of ASCII, each line once, cut into pieces of 4 096 letters; of the
pieces, in an order of chance, 5 % are the test and 5 % are held out for choosing settings (``--split held-out``). The
network: 64 letters of context, letters and places embedded in 96 numbers, three blocks of 4 heads and 384 hidden
neurons, layer norms only. AdamW, 1 200 steps of 32 contexts, called 50 epochs; a run begins from random weights. All
Linears of the blocks are pruned, 331 776 weights, the embeddings and the last layer are not:

- dense: not pruned;
- rising: ``law="rising"``, its layers sharing one threshold alone, as they did by default;
- balanced: the same as it is by default, three quarters of an equal share assured to every layer (on held-out pieces
  only);
- through: rising with straight-through gradients, which were its own at first;
- gradual: the smallest of the network leave, a cubic ramp over 80 % of training (Zhu & Gupta 2017, one threshold);
- annealed: the pruner as it is without any options, which is Gibbs pruning at a constant sparsity;
- feedback: gradual with straight-through gradients (Lin et al. 2020);
- sampled: Gibbs masks with feedback's ramp, threshold and gradients.

One file per seed: bits per letter of the test. One to three minutes per run on one core. What the law ``rising`` does
to survivors where there is no batch norm was chosen on pieces held out of an earlier cut of the text (seed 0, 90 %;
results/README.md), and so was looked at what gradients do (explore/gpt_gradients.json); nothing else was chosen.
"""

from __future__ import annotations

import argparse
import html.parser
import json
import math
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gibbsprune as gp

MANUALS = ("doc/debian-handbook/html/en-US/*.html", "debian-reference/*.en.html", "developers-reference/*.html",
           "doc/debian/FAQ/*.en.html", "doc/maint-guide/html/*.en.html")  # fmt: skip
PIECE, CONTEXT, LETTERS = 4096, 64, 96
WIDTH, HEADS, BLOCKS = 96, 4, 3
STEPS, EPOCHS, BATCH, RATE, DECAY, WARM = 1200, 50, 32, 3e-3, 0.1, 100
SPARSITIES = (0.8, 0.9)


class Page(html.parser.HTMLParser):
    """The text of a page, a line for each paragraph."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.hidden += tag in ("script", "style", "head")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style", "head")
        if tag in ("p", "li", "dd", "dt", "h1", "h2", "h3", "h4", "pre", "tr", "div"):
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)

    def lines(self) -> list[str]:
        plain = "".join(self.parts).translate({0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-"})
        return [line for each in plain.split("\n") if (line := re.sub(r"[^\x21-\x7e]+", " ", each).strip())]


def text(root: Path = Path("/usr/share")) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers of letters (0 ends a line): to train on, held out, of the test."""
    seen: dict[str, None] = {}
    for pattern in MANUALS:
        files = sorted(root.glob(pattern))
        if not files:
            raise SystemExit(f"{root / pattern} matches no file: install the packages that this file names")
        for file in files:
            page = Page()
            page.feed(file.read_text("utf-8", "replace"))
            seen.update(dict.fromkeys(page.lines()))
    numbers = torch.tensor([0 if letter == "\n" else ord(letter) - 31 for letter in "\n".join(seen)])
    pieces = numbers[: len(numbers) // PIECE * PIECE].view(-1, PIECE)
    pieces = pieces[torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))]
    n = len(pieces) // 20
    return pieces[2 * n :].flatten(), pieces[:n], pieces[n : 2 * n]


class Block(nn.Module):
    """Attention to what is before, then two dense layers, each after a norm and added to what there was."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        heads = [part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v)]
        x = x + self.o(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        nn.init.normal_(self.letters.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.letters(x) + self.places)))


def pruners() -> dict[str, Callable[[float], dict[str, Any]]]:
    """The options of a pruner, by method and sparsity."""

    def ramp(sparsity: float) -> dict[str, Any]:
        return {"sparsity": gp.Budget(gp.CubicSchedule(0.0, sparsity, round(0.8 * EPOCHS)))}

    cold, through = {"schedule": gp.ConstantSchedule(math.inf)}, {"gradient": "straight-through"}
    drawn = {"law": "annealed"}
    return {
        "rising": lambda sparsity: {"sparsity": gp.Budget(sparsity), "law": "rising"},
        "balanced": lambda sparsity: {"sparsity": sparsity, "law": "rising"},
        "through": lambda sparsity: {"sparsity": gp.Budget(sparsity), "law": "rising", **through},
        "gradual": lambda sparsity: {**ramp(sparsity), **cold},
        "annealed": lambda sparsity: {"sparsity": sparsity, **drawn},
        "feedback": lambda sparsity: {**ramp(sparsity), **cold, **through},
        "sampled": lambda sparsity: {**ramp(sparsity), **through, **drawn},
    }


def train(model: nn.Module, data: Tensor, seed: int, pruner: gp.GibbsPruner | None) -> None:
    matrices = [p for p in model.parameters() if p.dim() == 2 and len(p) != CONTEXT]
    others = [p for p in model.parameters() if p.dim() != 2 or len(p) == CONTEXT]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, RATE, betas=(0.9, 0.99))
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / WARM) * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    )
    generator = torch.Generator().manual_seed(seed)
    for step in range(STEPS):
        if pruner is not None and step % (STEPS // EPOCHS) == 0:
            pruner.set_epoch(step // (STEPS // EPOCHS))
        at = torch.randint(len(data) - CONTEXT - 1, (BATCH, 1), generator=generator) + torch.arange(CONTEXT + 1)
        x = data[at]
        F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
        if pruner is not None:
            pruner.step()


@torch.no_grad()
def bits(model: nn.Module, pieces: Tensor) -> list[float]:
    """Bits per letter of each piece of text, cut into contexts."""
    contexts = pieces[:, : PIECE // (CONTEXT + 1) * (CONTEXT + 1)].unflatten(1, (-1, CONTEXT + 1))
    found = []
    for some in contexts:
        loss = F.cross_entropy(model.eval()(some[:, :-1]).flatten(0, 1), some[:, 1:].flatten())
        found.append(float(loss) / math.log(2))
    return found


def result(method: str, sparsity: float, seed: int, data: Tensor, held: Tensor) -> dict[str, Any]:
    began = time.monotonic()
    torch.manual_seed(seed)
    model = GPT()
    pruner, found = None, {"method": method, "sparsity": sparsity, "seed": seed}
    if method != "dense":
        pruner = gp.GibbsPruner(
            model, exclude="head", epochs=EPOCHS, seed=seed, example_inputs=data[None, :CONTEXT],
            **pruners()[method](sparsity),
        )  # fmt: skip
    train(model, data, seed, pruner)
    if pruner is not None:
        found["agreement"] = pruner.agreement()
        model = pruner.finalize()
        weights = torch.cat([m.weight.detach().flatten() for m in model.blocks.modules() if isinstance(m, nn.Linear)])
        found["achieved"] = float((weights == 0).float().mean())
    each = bits(model, held)
    found |= {"bits": sum(each) / len(each), "pieces": [round(one, 4) for one in each]}
    return found | {"seconds": round(time.monotonic() - began)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    tested = [method for method in pruners() if method != "balanced"]
    parser.add_argument("--methods", default=",".join(["dense", *tested]))
    parser.add_argument("--split", choices=("test", "held-out"), default="test")
    parser.add_argument("--out", default=str(Path(__file__).parent))
    options = parser.parse_args()
    torch.set_num_threads(1)  # more only wait for each other
    data, held, test = text()
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    about = {**versions, "letters": len(data), "split": options.split}
    for seed in map(int, options.seeds.split(",")):
        file, results = Path(options.out) / f"gpt-seed-{seed}.json", []
        if file.exists():  # goes on where it was
            results = json.loads(file.read_text())["results"]
        for method in options.methods.split(","):
            for sparsity in SPARSITIES if method != "dense" else (0.0,):
                if any((r["method"], r["sparsity"]) == (method, sparsity) for r in results):
                    continue
                results.append(result(method, sparsity, seed, data, test if options.split == "test" else held))
                print({name: value for name, value in results[-1].items() if name != "pieces"}, flush=True)
                file.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
