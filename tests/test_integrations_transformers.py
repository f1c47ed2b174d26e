"""The Hugging Face callback with the real Trainer on a small transformer made from a config, and plain Accelerate."""

import importlib
import json
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import gibbsprune as gp
from gibbsprune.threshold import kept_count

transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")

SCHEDULE = gp.LogSchedule(1.0, 1e8, 1)
#: Masks that are drawn, and the law that there is without a word, which lasts as long as the trainer.
LAWS = {"annealed": {"schedule": SCHEDULE}, "rising": {}}
EXCLUDE = "classifier"

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory"),
]


class Words(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, 40, (48, 6), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.sum() % 3}


def make_model(seed=0):
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=8, num_labels=3,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.BertForSequenceClassification(config)


def pruning(*args, law="annealed", **kwargs):
    from gibbsprune.integrations.transformers import GibbsPruningCallback

    return GibbsPruningCallback(*args, **{"exclude": EXCLUDE, "seed": 5} | LAWS[law] | kwargs)


def make_trainer(model, folder, callback, others=(), model_init=None, **kwargs):
    settings = {
        "output_dir": str(folder), "num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-2,
        "use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "seed": 1,
        "logging_strategy": "epoch",
    }  # fmt: skip
    args = transformers.TrainingArguments(**settings | kwargs)
    return transformers.Trainer(
        model, args, train_dataset=Words(), eval_dataset=Words(), model_init=model_init, callbacks=[callback, *others]
    )


def check_final(model, sparsity=0.75, law="annealed"):
    """The sparsity of every layer, or with the law "rising" of all together."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert len(layers) == 14
    assert all(isinstance(layer.weight, nn.Parameter) for layer in layers.values()), "the parametrisation is gone"
    assert bool(layers.pop(EXCLUDE).weight.all())
    weights = [layer.weight.flatten() for layer in layers.values()]
    for weight in [torch.cat(weights)] if law == "rising" else weights:
        assert int((weight != 0).sum()) == kept_count(sparsity, weight.numel())


def betas(trainer):
    return [row["gibbsprune/beta"] for row in trainer.state.log_history if "gibbsprune/beta" in row]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_epochs(tmp_path, accumulate):
    model, callback = make_model(), pruning(0.75)
    trainer = make_trainer(model, tmp_path, callback, gradient_accumulation_steps=accumulate)
    trainer.train()
    assert callback.pruner.finalized
    assert callback.pruner.steps == trainer.state.global_step == 12 // accumulate
    check_final(model)
    assert betas(trainer) == [1.0, 1e8]
    rows = [row for row in trainer.state.log_history if "gibbsprune/agreement" in row]
    assert rows[0]["gibbsprune/agreement"] < 0.9
    assert rows[1]["gibbsprune/agreement"] > 0.99
    assert rows[1]["gibbsprune/sparsity"] == pytest.approx(0.75, abs=0.01)
    trainer.save_model(tmp_path / "final")
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "final")
    check_final(loaded)
    assert trainer.evaluate(Words())["eval_loss"] > 0


@pytest.mark.parametrize("law", LAWS)
def test_it_does_what_the_bare_pruner_does(tmp_path, law):
    """The same masks at every step as a pruner of one's own in a callback of one's own."""
    seen = {"callback": [], "bare": []}

    class Look(transformers.TrainerCallback):
        def __init__(self, name, pruner=None):
            self.name, self.pruner = name, pruner

        def on_epoch_begin(self, args, state, control, **kwargs):
            if self.pruner:
                self.pruner.set_epoch(round(state.epoch))

        def on_optimizer_step(self, args, state, control, **kwargs):
            if self.pruner:
                self.pruner.step()
            masks = (self.pruner or callback.pruner).masks.values()
            seen[self.name].append(torch.cat([masked.mask.flatten() for masked in masks]))

    callback = pruning(0.75, law=law, epochs=2)
    make_trainer(make_model(), tmp_path, callback, [Look("callback")]).train()
    model = make_model()
    pruner = gp.GibbsPruner(model, 0.75, seed=5, exclude=EXCLUDE, epochs=2, **LAWS[law])
    assert callback.pruner.law == pruner.law == law
    make_trainer(model, tmp_path, Look("bare", pruner)).train()
    assert len(seen["bare"]) == 12
    assert all(torch.equal(first, second) for first, second in zip(seen["callback"], seen["bare"]))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("structure", ["2:4", "4x4", "column", "head", "neuron"])
def test_patterns_and_units(tmp_path, structure, law):
    """What is left has the pattern in every layer that the summary names, and the excluded one is whole."""
    model = make_model()
    callback = pruning(
        None if structure == "2:4" else 0.5, structure=structure, draw="converged", law=law, importance="wanda",
        example_inputs={"input_ids": Words().ids[:2]}, **{"schedule": None} if law == "annealed" else {},
    )  # fmt: skip
    make_trainer(model, tmp_path, callback, num_train_epochs=1).train()
    assert callback.pruner.finalized
    layer = model.bert.encoder.layer[0]
    up, down = layer.intermediate.dense.weight, layer.output.dense.weight
    assert bool(model.classifier.weight.all())
    kept = {
        "2:4": lambda: gp.NM(2, 4).rows(down != 0).sum(1).eq(2),
        "4x4": lambda: gp.Block(4, 4).rows(down != 0).sum(1).remainder(16).eq(0),
        "column": lambda: down.ne(0).sum(0).remainder(16).eq(0),
        "head": lambda: layer.attention.self.query.weight.reshape(2, -1).ne(0).all(1).logical_xor(
            layer.attention.output.dense.weight.reshape(16, 2, 8).eq(0).all(2).all(0)
        ),
        "neuron": lambda: up.ne(0).all(1).logical_xor(down.eq(0).all(0)),
    }[structure]()  # fmt: skip
    assert bool(kept.all())
    assert bool((down == 0).any()) or structure == "head"


@pytest.mark.parametrize("law", LAWS)
def test_resuming(tmp_path, law):
    """Killed in the middle of the second epoch, resumed from its checkpoint, equal to the run that was not."""

    def train(folder, others=(), **kwargs):
        model, callback = make_model(kwargs.pop("seed_of_model", 0)), pruning(0.75, law=law, draw=None)
        trainer = make_trainer(
            model, tmp_path / folder, callback, others, num_train_epochs=3, save_strategy="steps", save_steps=3
        )
        trainer.train(**kwargs)
        return model, callback.pruner, trainer

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 11:
                raise KeyError("stop")

    straight, whole, trainer = train("straight")
    assert betas(trainer) == ([1.0, 1e8, 1e8] if law == "annealed" else [])
    with pytest.raises(KeyError, match="stop"):
        train("stopped", [Stop()])
    path = tmp_path / "stopped" / "checkpoint-9"
    saved = json.loads((path / "trainer_state.json").read_text())["stateful_callbacks"]["GibbsPruningCallback"]
    assert saved["pruner"]["steps"] == 9
    resumed, pruner, trainer = train("resumed", seed_of_model=4, resume_from_checkpoint=str(path))
    assert pruner.steps == whole.steps == 18
    for name, masked in pruner.masks.items():
        assert torch.equal(masked.mask, whole.masks[name].mask)
    for first, second in zip(resumed.parameters(), straight.parameters()):
        assert torch.equal(first, second)
    pruner.finalize("converged")
    check_final(resumed, law=law)
    trainer.save_model(tmp_path / "final")
    with pytest.raises(gp.UserError, match=r"^the checkpoint holds no masks: it is of a model that was finalized"):
        train("again", resume_from_checkpoint=str(tmp_path / "final"))


def test_a_part_of_a_checkpoint_need_not_hold_masks(tmp_path):
    """Large models are saved as several files, which are loaded one by one."""
    model = make_model()
    make_trainer(model, tmp_path, pruning(0.75))
    state = model.state_dict()
    for part in ("bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1"):
        found = {name: tensor for name, tensor in state.items() if name.startswith(part)}
        assert found
        model.load_state_dict(found, strict=False)
    with pytest.raises(gp.UserError, match=r"^the checkpoint holds no masks"):
        model.load_state_dict({"bert.encoder.layer.0.output.dense.weight": torch.ones(16, 32)}, strict=False)


def test_the_best_checkpoint_is_the_one_that_is_finalized(tmp_path):
    model, callback = make_model(), pruning(0.75, draw="converged")
    trainer = make_trainer(
        model, tmp_path, callback, save_strategy="epoch", eval_strategy="epoch", load_best_model_at_end=True
    )
    trainer.train()
    check_final(model)
    best = trainer.state.best_metric
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best, abs=1e-5)


def test_reporters_get_the_numbers(tmp_path):
    class Reporter(transformers.TrainerCallback):
        logs = []  # noqa: RUF012

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.logs.append(dict(logs))

    callback = pruning(0.75)
    callback.trainer = trainer = make_trainer(make_model(), tmp_path, callback, [Reporter()])
    trainer.train()
    assert [row["gibbsprune/beta"] for row in Reporter.logs if "gibbsprune/beta" in row] == [1.0, 1e8]


@pytest.mark.parametrize(
    ("law", "wanted"),
    [("annealed", [(13, 19), (15, 24), (5, 8), (5, 8), (5, 8)]),
     ("rising", [(18, 19), (22, 24), (7, 8), (7, 8), (7, 8)])],
)  # fmt: skip
def test_the_default_schedule_lasts_as_long_as_the_trainer(tmp_path, law, wanted):
    """Of β, or of the sparsity; few epochs are cut into hundredths of all steps."""
    found = []
    for own, others in (
        ({}, {"num_train_epochs": 20, "per_device_train_batch_size": 48}),
        ({}, {"num_train_epochs": 4}),
        ({"steps_per_epoch": 3}, {"num_train_epochs": 4}),
        ({"steps_per_epoch": 1}, {"max_steps": 8}),
        ({}, {"max_steps": 8}),
    ):
        callback = pruning(0.75, draw=None, law=law, **own)
        callback._follower.arguments["law"] = law
        callback._follower.arguments.pop("schedule", None)
        make_trainer(make_model(), tmp_path, callback, **others).train()
        pruner = callback.pruner
        schedule = pruner.schedule if law == "annealed" else pruner._plan.budget.weights
        found.append((schedule.epochs, pruner.epoch))
    assert found == wanted


def test_a_callback_added_later_is_refused(tmp_path):
    trainer = make_trainer(make_model(), tmp_path, pruning(0.75))
    trainer.pop_callback(type(pruning()))
    trainer.add_callback(pruning(0.75))
    with pytest.raises(gp.UserError, match=r"^GibbsPruningCallback has not seen the trainer being made"):
        trainer.train()


def test_another_trainer_gets_a_pruner_of_its_own(tmp_path):
    callback = pruning(0.75, draw="converged")
    for seed in range(2):
        model = make_model(seed)
        make_trainer(model, tmp_path, callback).train()
        assert callback.pruner.model is model
        check_final(model)


def test_a_model_that_the_trainer_makes(tmp_path):
    def trainer():
        settings = {"model_init": lambda: make_model(), "save_strategy": "steps", "save_steps": 3}
        return make_trainer(None, tmp_path, pruning(0.75, draw="converged"), **settings)

    made = trainer()
    for _ in range(2):
        made.train()  # makes its model anew
        check_final(made.model)
    with pytest.raises(gp.UserError, match=r"^the trainer made another model than the one that is pruned: a training"):
        trainer().train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("stop", [None, 7])
def test_plain_accelerate(tmp_path, stop, law):
    """Gradient accumulation, saving with everything else, resuming; the pruner is registered like any other state."""

    def run(start, end, model, resume=None, save_at=None):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        pruner = gp.GibbsPruner(model, 0.75, seed=5, exclude=EXCLUDE, epochs=2, **LAWS[law])
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        prepared, optimizer, loader = accelerator.prepare(model.eval(), optimizer, DataLoader(Words(), 4))
        for layer in pruner.masks.values():
            layer.train()  # without dropout the runs need no random state but the pruner's
        accelerator.register_for_checkpointing(pruner)
        if resume:
            accelerator.load_state(resume)
        batches = list(loader) * 2
        for number in range(start, end):
            pruner.set_epoch(number // len(loader))
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(**batches[number]).loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                pruner.step()
            if number + 1 == save_at:
                accelerator.save_state(tmp_path / "state")
        return pruner

    straight = make_model()
    pruner = run(0, 24, straight)
    assert pruner.steps == 12
    if stop:
        run(0, 2 * stop, make_model(), save_at=2 * stop)
        resumed = make_model(3)
        other = run(2 * stop, 24, resumed, resume=tmp_path / "state")
        assert other.steps == 12
        for first, second in zip(resumed.parameters(), straight.parameters()):
            assert torch.equal(first, second)
    pruner.finalize("converged")
    check_final(straight, law=law)


def test_without_the_library(monkeypatch):
    for name in ("transformers",):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "gibbsprune.integrations.transformers", raising=False)
    with pytest.raises(
        gp.UserError, match=r"^GibbsPruningCallback needs Transformers: pip install 'gibbsprune\[transformers\]'$"
    ):
        importlib.import_module("gibbsprune.integrations.transformers")


def test_a_finished_training_is_not_resumed_in_the_same_model(tmp_path):
    trainer = make_trainer(make_model(), tmp_path, pruning(0.75), save_strategy="epoch", num_train_epochs=2)
    trainer.train()
    path = next(tmp_path.glob("checkpoint-*"))
    with pytest.raises(gp.UserError, match="the masks of this model are burnt in, so that the checkpoint's masked"):
        trainer.train(resume_from_checkpoint=str(path))
