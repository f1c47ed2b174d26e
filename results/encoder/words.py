"""A transformer encoder pruned to 2:4: in which of ten languages is this word?

    apt-get install wamerican wdanish wdutch wfrench witalian wngerman wpolish wportuguese wspanish wswedish
    python results/encoder/words.py [--seeds 0,1,2] [--out results/encoder]

The words are Debian's lists, without accents, so that spelling has to tell; those of several languages are left out.
5 000 of each language are trained on, 1 000 others are the test. The network: letters and places embedded in 64
numbers, two encoder layers of 4 heads and 128 hidden neurons, their mean over the letters classified. It is trained
dense, and then for the same epochs, with the same batches, learning rate and optimiser,

- dense: as before, which is what more training is worth;
- magnitude, wanda: pruned to 2:4 at once, by |w| or by |w|·‖x‖ of 2 000 training words (Sun et al. 2023), zeros held;
- gibbs: 2:4 drawn at every step, annealed over the first 64 % of the epochs; with "straight-through" gradients; and
  with Wanda's scores in the place of magnitudes.

All Linears of both layers are pruned, the embeddings and the classifier are not. Nothing was tuned on the test words.
One file per seed: accuracies on the test words after fine-tuning, and before it where the mask is there at once. Some
minutes per seed on one core.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import random
import time
import unicodedata
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gibbsprune as gp
from gibbsprune.importance import by_inputs

DICTIONARIES = Path("/usr/share/dict")
LANGUAGES = (
    "american-english", "danish", "dutch", "french", "italian", "ngerman", "polish", "portuguese", "spanish", "swedish",
)  # fmt: skip
SHORT, LONG, TRAIN, TEST = 4, 14, 5000, 1000
WIDTH, HEADS, HIDDEN, LAYERS = 64, 4, 128, 2
BATCH, DENSE, TUNE, RATE = 250, 10, 5, 2e-3


def words() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Letters (1 to 26, 0 behind the end) and languages: of training, and of the test."""
    lists = {language: _spelled(DICTIONARIES / language) for language in LANGUAGES}
    every = [word for some in lists.values() for word in some]
    seen: dict[str, int] = {}
    for word in every:
        seen[word] = seen.get(word, 0) + 1
    x, chance = [], random.Random(0)
    for some in lists.values():
        own = sorted(word for word in some if seen[word] == 1)
        chance.shuffle(own)
        x.append([[ord(c) - 96 for c in word.ljust(LONG, "`")] for word in own[: TRAIN + TEST]])
    y = torch.arange(len(lists)).repeat_interleave(TRAIN + TEST).view(len(lists), -1)
    letters = torch.tensor(x)
    return (letters[:, :TRAIN].flatten(0, 1), y[:, :TRAIN].flatten(),
            letters[:, TRAIN:].flatten(0, 1), y[:, TRAIN:].flatten())  # fmt: skip


def _spelled(path: Path) -> set[str]:
    """The words of a list in the letters a to z."""
    found, content = set(), path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:  # older lists
        text = content.decode("latin-1")
    for word in text.splitlines():
        plain = "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
        if SHORT <= len(plain) <= LONG and plain.isascii() and plain.isalpha() and plain[1:].islower():
            found.add(plain.lower())
    return found


class Layer(nn.Module):
    """Attention and two dense layers, each after a norm and added to what there was."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        y = self.before(x)
        heads = [part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v)]
        mixed = F.scaled_dot_product_attention(*heads, attn_mask=there[:, None, None])
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(27, WIDTH), nn.Parameter(0.02 * torch.randn(LONG, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.classify = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LANGUAGES))

    def forward(self, letters: Tensor) -> Tensor:
        there, x = letters > 0, self.letters(letters) + self.places
        for layer in self.layers:
            x = layer(x, there)
        return self.classify((self.norm(x) * there[..., None]).sum(1) / there.sum(1, keepdim=True))


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int, seed: int, pruner: gp.GibbsPruner | None = None) -> None:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(x) // BATCH))
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        if pruner is not None:
            pruner.set_epoch(epoch)
        for some in torch.randperm(len(x), generator=generator).split(BATCH):
            F.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
            optimizer.zero_grad()
            decay.step()
            if pruner is not None:
                pruner.step()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    return sum(int((model(a).argmax(1) == b).sum()) for a, b in zip(x.split(1000), y.split(1000))) / len(x)


def pruned(model: nn.Module) -> dict[str, nn.Linear]:
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and name != "classify"}


@torch.no_grad()
def at_once(model: nn.Module, how: str, x: Tensor) -> None:
    """2:4 by |w|, or by |w|·‖x‖ of training words, layer by layer from the dense network's activations."""
    norms: dict[str, Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, given, name=name: norms.update({name: given[0].square().mean((0, 1))})
        )
        for name, layer in pruned(model).items()
    ]
    model.eval()(x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:2000]])
    for hook in hooks:
        hook.remove()
    for name, layer in pruned(model).items():
        score = layer.weight if how == "magnitude" else by_inputs(layer.weight, norms[name])
        layer.weight.mul_(gp.converged_mask(score, None, "2:4"))
    gp.hold_zeros(model)


GIBBS = {
    "gibbs": {},
    "gibbs, straight-through": {"gradient": "straight-through"},
    "gibbs, wanda": {"importance": "wanda"},
}


def seed_result(seed: int, x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> dict[str, object]:
    began = time.monotonic()
    torch.manual_seed(seed)
    dense = Encoder()
    train(dense, x, y, DENSE, seed)
    found: dict[str, dict[str, float]] = {"trained": {"accuracy": accuracy(dense, x_test, y_test)}}
    for name in ("dense", "magnitude", "wanda", *GIBBS):
        model = copy.deepcopy(dense)
        result, pruner = {}, None
        if name in ("magnitude", "wanda"):
            at_once(model, name, x)
            result["before"] = accuracy(model, x_test, y_test)
        elif name in GIBBS:
            pruner = gp.GibbsPruner(
                model, structure="2:4", law="annealed", exclude="classify", epochs=TUNE, seed=seed,
                example_inputs=x[:2], **GIBBS[name],
            )  # fmt: skip
        train(model, x, y, TUNE, seed + 1000, pruner)
        if pruner is not None:
            result["agreement"] = pruner.agreement()
            model = pruner.finalize()
        result["accuracy"] = accuracy(model, x_test, y_test)
        zeros = [bool((layer.weight.view(-1, 4) != 0).sum(1).eq(2).all()) for layer in pruned(model).values()]
        assert name == "dense" or all(zeros), name
        found[name] = result
        print(seed, name, result, f"{time.monotonic() - began:.0f} s", flush=True)
    about = {"torch": torch.__version__, "python": platform.python_version(), "words": len(x), "tests": len(x_test),
             "epochs": [DENSE, TUNE], "seconds": round(time.monotonic() - began)}  # fmt: skip
    return {"seed": seed, "results": found, **about}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", default=str(Path(__file__).parent))
    options = parser.parse_args()
    torch.set_num_threads(1)  # more only wait for each other
    data = words()
    for seed in map(int, options.seeds.split(",")):
        result = seed_result(seed, *data)
        (Path(options.out) / f"seed-{seed}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
