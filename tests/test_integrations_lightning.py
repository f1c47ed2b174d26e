"""The Lightning callback with the real trainers: two epochs, checkpoints, resuming, finalizing, exact sparsity."""

import contextlib
import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gibbsprune as gp
from gibbsprune.structures import as_structure
from gibbsprune.threshold import kept_count

pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*dirpath has changed"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

LAYERS = ("net.1", "net.3")
SCHEDULE = gp.LogSchedule(1.0, 1e7, 1)
#: Masks that are drawn, and the law that there is without a word, which lasts as long as the trainer.
LAWS = {"annealed": {"schedule": SCHEDULE}, "rising": {}}


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def pl(request):
    return importlib.import_module(request.param)


@pytest.fixture
def lightning():
    return importlib.import_module("lightning.pytorch")


def pruning(*args, **kwargs):
    from gibbsprune.integrations.lightning import GibbsPruning

    return GibbsPruning(*args, **kwargs)


def make_module(pl, seed=0, late=False):
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = None
            if not late:
                self.make()

        def make(self):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                hidden = (nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 12), nn.ReLU())
                self.net = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(12, 4))

        def configure_model(self):
            if self.net is None:
                self.make()

        def training_step(self, batch):
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch):
            self.log("val", F.cross_entropy(self.net(batch[0]), batch[1]))

        test_step = validation_step

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

    if not late:
        del Module.configure_model
    return Module()


def make_loader(batch_size=8):
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(48, 16, generator=generator), torch.randint(0, 4, (48,), generator=generator))
    return DataLoader(data, batch_size)


def make_trainer(pl, folder, callbacks, **kwargs):
    settings = {
        "accelerator": "cpu", "devices": 1, "max_epochs": 2, "default_root_dir": folder, "logger": False,
        "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False,
    }  # fmt: skip
    return pl.Trainer(callbacks=callbacks, **(settings | kwargs))


def check_final(module, sparsity=0.75, law="annealed"):
    """The sparsity of every layer, or with the law "rising" of all together."""
    weights = [module.get_submodule(name).weight for name in LAYERS]
    assert all(isinstance(weight, nn.Parameter) for weight in weights), "the parametrisation is gone"
    for weight in [torch.cat([weight.flatten() for weight in weights])] if law == "rising" else weights:
        assert int((weight != 0).sum()) == kept_count(sparsity, weight.numel())


def bare_run(epochs=2, accumulate=1, **options):
    """The same training with the bare pruner."""
    module = make_module(importlib.import_module("lightning.pytorch"))
    settings = {"sparsity": 0.75, "schedule": SCHEDULE, "seed": 5, "epochs": epochs}
    pruner = gp.GibbsPruner(module, **settings | options)
    optimizer = module.configure_optimizers()
    for epoch in range(epochs):
        pruner.set_epoch(epoch)
        for number, (x, y) in enumerate(make_loader()):
            (F.cross_entropy(module.net(x), y) / accumulate).backward()
            if (number + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                pruner.step()
    return module, pruner


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_it_does_what_the_bare_pruner_does(pl, tmp_path, accumulate, law):
    callback = pruning(0.75, seed=5, epochs=2, **LAWS[law])
    module = make_module(pl)
    trainer = make_trainer(pl, tmp_path, [callback], accumulate_grad_batches=accumulate)
    trainer.fit(module, make_loader(), make_loader())
    expected, pruner = bare_run(accumulate=accumulate, **{"schedule": None} | LAWS[law])
    assert callback.pruner.law == pruner.law == law
    assert callback.pruner.steps == pruner.steps == 12 // accumulate
    pruner.finalize()
    for (name, first), (other, second) in zip(module.named_parameters(), expected.named_parameters()):
        assert name == other
        assert torch.equal(first, second)
    check_final(module, law=law)
    assert callback.pruner.finalized
    trainer.test(module, make_loader(), verbose=False)


PATTERNS = [
    {"structure": "2:4", "sparsity": None},
    {"structure": "4x4", "sparsity": 0.5},
    {"structure": "column", "sparsity": 0.5},
    {"structure": gp.Unit({"net.1": "filter", "net.3": "column"}), "sparsity": 0.5},
    {"structure": "filter", "sparsity": 0.5, "hamiltonian": gp.Redundancy(), "diagnostics": 4},
]


@pytest.mark.filterwarnings("ignore:the network has no graph")
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: as_structure(pattern["structure"]).spelling)
def test_patterns_and_energies_are_as_by_the_bare_pruner(lightning, tmp_path, pattern):
    options = pattern | {"schedule": SCHEDULE, "seed": 5}
    module = make_module(lightning)
    make_trainer(lightning, tmp_path, [pruning(**options)]).fit(module, make_loader())
    options.pop("diagnostics", None)
    expected, pruner = bare_run(**options)
    pruner.finalize()
    assert all(torch.equal(*both) for both in zip(module.parameters(), expected.parameters()))
    assert bool((expected.net[3].weight == 0).any())


def test_metrics_go_to_the_logger_that_is_there(pl, tmp_path):
    logger = pl.loggers.CSVLogger(tmp_path)
    trainer = make_trainer(pl, tmp_path, [pruning(0.75, schedule=SCHEDULE)], logger=logger, log_every_n_steps=1)
    trainer.fit(make_module(pl), make_loader())
    rows = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
    names = rows[0].split(",")
    found = [dict(zip(names, row.split(","))) for row in rows[1:]]
    betas, agreements, sparsities = (
        [float(row[f"gibbsprune/{what}"]) for row in found if row[f"gibbsprune/{what}"]]
        for what in ("beta", "agreement", "sparsity")
    )
    assert betas == [1.0, 1e7]
    assert agreements[0] < 0.9
    assert agreements[1] > 0.99
    assert sparsities[0] < 0.7  # of 0.75 in the end: it was still hot
    assert sparsities[1] == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("law", LAWS)
def test_a_checkpoint_resumes_bit_for_bit(pl, tmp_path, law):
    def fit(callbacks, module, path=None):
        callback = pruning(0.75, seed=5, draw=None, **LAWS[law])
        saver = pl.callbacks.ModelCheckpoint(tmp_path / f"{len(callbacks)}")
        trainer = make_trainer(pl, tmp_path, [callback, *callbacks, saver], max_epochs=3, enable_checkpointing=True)
        trainer.fit(module, make_loader(), ckpt_path=path)
        return trainer, callback

    straight = make_module(pl)
    whole = fit([], straight)[1]

    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if trainer.global_step == 9:  # in the middle of the second epoch
                raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        fit([Stop()], make_module(pl))
    resumed = make_module(pl, seed=1)
    trainer, callback = fit([], resumed, tmp_path / "1/epoch=0-step=6.ckpt")
    assert callback.pruner.steps == whole.pruner.steps == 18
    assert trainer.current_epoch == 3
    for name in LAYERS:
        assert torch.equal(callback.pruner.masks[name].mask, whole.pruner.masks[name].mask)
    for first, second in zip(resumed.parameters(), straight.parameters()):
        assert torch.equal(first, second)
    callback.pruner.finalize("converged")
    check_final(resumed, law=law)


def test_two_callbacks_prune_different_layers(lightning, tmp_path):
    """Each with its own state in one checkpoint, which goes on bit for bit, and its own metrics."""

    def fit(module, path=None):
        first = pruning(0.75, include=["net.1"], schedule=SCHEDULE, seed=5, draw="converged")
        second = pruning(0.5, include=["net.3"], structure="filter", schedule=SCHEDULE, draw="converged")
        saver = lightning.callbacks.ModelCheckpoint(tmp_path / "saved", save_top_k=-1)
        trainer = make_trainer(lightning, tmp_path, [first, second, saver], enable_checkpointing=True)
        trainer.fit(module, make_loader(), ckpt_path=path)
        return trainer, first

    straight, resumed = make_module(lightning), make_module(lightning, seed=1)
    trainer, first = fit(straight)
    assert first.state_key == "GibbsPruning{include=net.1}"
    assert list(first.pruner.masks) == ["net.1"]
    assert {"gibbsprune/beta", "gibbsprune/2/beta"} <= trainer.callback_metrics.keys()
    fit(resumed, tmp_path / "saved/epoch=0-step=6.ckpt")
    for one, other in zip(straight.parameters(), resumed.parameters()):
        assert torch.equal(one, other)
    assert int((straight.net[1].weight == 0).sum()) == 240
    assert int(straight.net[3].weight.any(1).sum()) == kept_count(0.5, 12)
    with pytest.raises(RuntimeError, match="more than one stateful callback"):
        make_trainer(lightning, tmp_path, [pruning(0.75), pruning(0.5)])
    state = torch.load(tmp_path / "saved/epoch=0-step=6.ckpt", weights_only=True)["state_dict"]
    plain = make_module(lightning)
    plain.load_state_dict(gp.plain_state(state))
    assert torch.equal(plain.net[1].weight != 0, state["net.1.parametrizations.weight.0.mask"])


def test_several_callbacks_are_told_apart_by_what_they_prune():
    assert pruning(0.5).state_key == "GibbsPruning"
    assert pruning(0.5, exclude=(nn.Linear, "x.*")).state_key == "GibbsPruning{exclude=Linear|x.*}"
    assert pruning(0.5, include=make_loader).state_key == "GibbsPruning{include=make_loader}"


@pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint need to be provided")
@pytest.mark.parametrize(("law", "weights_only"), [("annealed", True), ("annealed", False), ("rising", False)])
def test_a_checkpoint_of_the_training_can_be_tested(lightning, tmp_path, law, weights_only):
    """Into the finalized model and into a fresh one; both give what the model gave in its validation."""
    module = make_module(lightning)
    saver = lightning.callbacks.ModelCheckpoint(tmp_path, monitor="val", save_weights_only=weights_only)
    callbacks = [pruning(0.75, draw="converged", **LAWS[law]), saver]
    trainer = make_trainer(lightning, tmp_path, callbacks, enable_checkpointing=True)
    trainer.fit(module, make_loader(), make_loader())
    check_final(module, law=law)
    best = float(saver.best_model_score)
    again = trainer.test(module, make_loader(), ckpt_path=saver.best_model_path, verbose=False)

    class Hook(lightning.Callback):
        """Another that looks at what is loaded, after ours."""

        def setup(self, trainer, pl_module, stage):
            pl_module.register_load_state_dict_pre_hook(lambda *_: None)

    fresh = make_trainer(lightning, tmp_path, [pruning(0.75, **LAWS[law]), Hook()]).test(
        make_module(lightning, 7), make_loader(), ckpt_path=saver.best_model_path, verbose=False
    )
    assert again[0]["val"] == fresh[0]["val"] == pytest.approx(best, abs=1e-6)


def test_a_finalized_checkpoint_cannot_be_resumed(lightning, tmp_path):
    trainer = make_trainer(lightning, tmp_path, [pruning(0.75, schedule=SCHEDULE)])
    trainer.fit(make_module(lightning), make_loader())
    trainer.save_checkpoint(tmp_path / "final.ckpt")
    other = make_trainer(lightning, tmp_path, [pruning(0.75, schedule=SCHEDULE)], max_epochs=3)
    with pytest.raises(gp.UserError, match=r"^the checkpoint holds no masks: it is of a model that was finalized"):
        other.fit(make_module(lightning), make_loader(), ckpt_path=tmp_path / "final.ckpt")


def test_a_fit_that_failed_is_begun_again(lightning, tmp_path):
    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            raise KeyError("stop")

    module, callback = make_module(lightning), pruning(0.75, schedule=SCHEDULE, draw="converged")
    with pytest.raises(KeyError, match="stop"):
        make_trainer(lightning, tmp_path, [callback, Stop()]).fit(module, make_loader())
    make_trainer(lightning, tmp_path, [callback]).fit(module, make_loader())
    assert callback.pruner.steps == 12
    check_final(module)


def test_a_second_fit_tunes_the_pruned_model(lightning, tmp_path):
    module, callback = make_module(lightning), pruning(0.75, schedule=SCHEDULE)
    make_trainer(lightning, tmp_path, [callback]).fit(module, make_loader())
    before = module.net[1].weight.detach().clone()
    make_trainer(lightning, tmp_path, [callback]).fit(module, make_loader())
    assert torch.equal(module.net[1].weight != 0, before != 0)
    assert not torch.equal(module.net[1].weight, before)


@pytest.mark.parametrize("draw", ["converged", None])
def test_another_model_gets_a_pruner_of_its_own(lightning, tmp_path, draw):
    callback = pruning(0.75, schedule=SCHEDULE, draw=draw)
    for seed in range(2):
        module = make_module(lightning, seed)
        make_trainer(lightning, tmp_path, [callback]).fit(module, make_loader())
        assert callback.pruner.model is module
        assert callback.pruner.steps == 12
        if draw is None:
            callback.pruner.finalize("converged")
        check_final(module)


def test_masks_on_other_layers_cannot_be_resumed(lightning, tmp_path):
    trainer = make_trainer(lightning, tmp_path, [pruning(0.75, schedule=SCHEDULE, include="net.1", draw=None)])
    trainer.fit(make_module(lightning), make_loader())
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    for layers in ("net.*", "net.3"):
        other = make_trainer(lightning, tmp_path, [pruning(0.75, schedule=SCHEDULE, include=layers)], max_epochs=3)
        with pytest.raises(gp.UserError, match=r"^the checkpoint has masks on other layers than this pruner: .*net.3"):
            other.fit(make_module(lightning), make_loader(), ckpt_path=tmp_path / "one.ckpt")


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_precision(lightning, tmp_path, precision):
    module = make_module(lightning)
    structure = "filter" if precision == "64-true" else "weight"
    callback = pruning(0.75, structure=structure, include="net.*", schedule=SCHEDULE, draw="converged")
    make_trainer(lightning, tmp_path, [callback], precision=precision).fit(module, make_loader())
    kinds = {"bf16-mixed": torch.float32, "bf16-true": torch.bfloat16, "64-true": torch.float64}
    assert module.net[1].weight.dtype == kinds[precision]
    assert callback.pruner.summary().achieved == pytest.approx(0.75, abs=0.06)


def test_compiled(lightning, tmp_path):
    module, (expected, pruner) = make_module(lightning), bare_run()
    module.net.compile(backend="aot_eager")
    callback = pruning(0.75, schedule=SCHEDULE, seed=5)
    make_trainer(lightning, tmp_path, [callback]).fit(module, make_loader(), make_loader())
    check_final(module)
    assert callback.pruner.steps == 12
    pruner.finalize()
    for first, second in zip(module.parameters(), expected.parameters()):
        torch.testing.assert_close(first, second)


def test_averaged_weights(lightning, tmp_path):
    module = make_module(lightning)
    average = lightning.callbacks.EMAWeightAveraging(decay=0.5)
    callback = pruning(0.75, schedule=SCHEDULE, draw="converged")
    make_trainer(lightning, tmp_path, [callback, average]).fit(module, make_loader(), make_loader())
    check_final(module)
    stored = average._average_model.module.net[1].parametrizations.weight.original
    assert torch.equal(module.net[1].weight, stored * gp.converged_mask(stored, 0.75))
    wrong = make_trainer(lightning, tmp_path, [lightning.callbacks.EMAWeightAveraging(), pruning(0.75)])
    with pytest.raises(gp.UserError, match=r"^EMAWeightAveraging comes before GibbsPruning in the trainer's callbacks"):
        wrong.fit(make_module(lightning), make_loader())
    for buffers in (False, True):
        module = make_module(lightning)
        mean = lightning.callbacks.WeightAveraging(use_buffers=buffers)
        trainer = make_trainer(lightning, tmp_path, [callback, mean])
        trainer.fit(module, make_loader())
        check_final(module)
    on_gpu = SimpleNamespace(callbacks=trainer.callbacks, strategy=SimpleNamespace(root_device=torch.device("cuda")))
    with pytest.raises(gp.UserError, match=r"knows no whole numbers on cuda: give it avg_fn="):
        callback._check_averages(on_gpu)


def test_layers_made_in_configure_model(lightning, tmp_path):
    module = make_module(lightning, late=True)
    make_trainer(lightning, tmp_path, [pruning(0.75, schedule=SCHEDULE)]).fit(module, make_loader())
    check_final(module)


@pytest.mark.parametrize(
    ("law", "wanted"),
    [("annealed", [(32, 0), (96, 1), (32, 1), (6, 0)]), ("rising", [(45, 0), (135, 1), (45, 1), (9, 0)])],
)
def test_the_default_schedule_lasts_as_long_as_the_trainer(lightning, tmp_path, law, wanted):
    """Of β, or of the sparsity."""
    lengths = []
    for own, others in (
        ({}, {"max_epochs": 50}),
        ({"steps_per_epoch": 2}, {"max_epochs": 50}),
        ({"steps_per_epoch": 2}, {"max_epochs": -1, "max_steps": 100}),
        ({"epochs": 10}, {"max_epochs": 50}),
    ):
        callback = pruning(0.75, draw=None, law=law, **own)
        trainer = make_trainer(lightning, tmp_path, [callback], **others)
        trainer.callbacks.append(three_steps(lightning))
        trainer.fit(make_module(lightning), make_loader())
        pruner = callback.pruner
        schedule = pruner.schedule if law == "annealed" else pruner._plan.budget.weights
        lengths.append((schedule.epochs, pruner.epoch))
    assert lengths == wanted


def test_a_training_without_an_end_needs_a_schedule(lightning, tmp_path):
    trainer = make_trainer(lightning, tmp_path, [pruning(0.75), three_steps(lightning)], max_epochs=-1)
    with pytest.raises(gp.UserError, match=r"^the trainer does not know how long it will train"):
        trainer.fit(make_module(lightning), make_loader())
    callback = pruning(0.75, schedule=SCHEDULE, draw="converged")
    trainer = make_trainer(lightning, tmp_path, [callback, three_steps(lightning)], max_epochs=-1)
    module = make_module(lightning)
    trainer.fit(module, make_loader())
    check_final(module)


def three_steps(pl):
    """A callback that stops the training after three steps."""

    class Three(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step >= 3

    return Three()


def test_bad_arguments():
    with pytest.raises(gp.UserError, match=r"^draw is 'some': allowed are 'sample', 'converged', None$"):
        pruning(draw="some")
    with pytest.raises(gp.UserError, match=r"^steps_per_epoch is 0: allowed are whole numbers from 1$"):
        pruning(steps_per_epoch=0)


def test_steps_per_epoch_of_numpy():
    assert pruning(steps_per_epoch=np.int64(3))._follower.steps_per_epoch == 3


def test_without_the_library(monkeypatch):
    for name in (
        "lightning.pytorch",
        "pytorch_lightning",
    ):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "gibbsprune.integrations.lightning", raising=False)
    with pytest.raises(gp.UserError, match=r"^GibbsPruning needs Lightning: pip install 'gibbsprune\[lightning\]'$"):
        importlib.import_module("gibbsprune.integrations.lightning")


def test_a_finalized_model_takes_no_checkpoint_with_masks(lightning, tmp_path):
    def fit(module, callback, path=None):
        saver = lightning.callbacks.ModelCheckpoint(tmp_path / "c", save_top_k=-1)
        trainer = make_trainer(lightning, tmp_path, [callback, saver], max_epochs=2, enable_checkpointing=True)
        trainer.fit(module, make_loader(), ckpt_path=path)

    module, callback = make_module(lightning), pruning(0.75, schedule=SCHEDULE, draw="converged")
    fit(module, callback)
    with pytest.raises(gp.UserError, match=r"^the masks of this model are burnt in, so that a checkpoint with masks"):
        fit(module, callback, tmp_path / "c" / "epoch=0-step=6.ckpt")
    check_final(module)


@pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint need to be provided")
@pytest.mark.parametrize("end", ["well", "badly"])
def test_the_finished_model_is_back_after_the_test_of_a_checkpoint(pl, tmp_path, end):
    module, callback = make_module(pl), pruning(0.75, schedule=SCHEDULE, draw="converged")
    saver = pl.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1)
    trainer = make_trainer(pl, tmp_path, [callback, saver], enable_checkpointing=True)
    trainer.fit(module, make_loader())
    pruner, finished = callback.pruner, {name: value.clone() for name, value in module.state_dict().items()}
    seen = []

    class Look(pl.Callback):
        def on_test_start(self, trainer, pl_module):
            seen.extend(pl_module.state_dict())
            if end == "badly":
                raise KeyError("stop")

    tester = make_trainer(pl, tmp_path, [callback, Look()])
    with pytest.raises(KeyError, match="stop") if end == "badly" else contextlib.nullcontext():
        tester.test(module, make_loader(), ckpt_path=tmp_path / "epoch=0-step=6.ckpt", verbose=False)
    assert "net.1.parametrizations.weight.original" in seen
    assert callback.pruner is pruner
    assert list(module.state_dict()) == list(finished)
    assert all(torch.equal(value, finished[name]) for name, value in module.state_dict().items())
    make_trainer(pl, tmp_path, [callback]).fit(module.train(), make_loader())
    assert torch.equal(module.net[1].weight != 0, finished["net.1.weight"] != 0), "tuned on, its zeros kept"
    assert not torch.equal(module.net[1].weight, finished["net.1.weight"])
