"""What one of two ranks does in tests/test_distributed.py: ``python rank_jobs.py JOB RANK FOLDER``."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gibbsprune as gp

KINDS = ("weight", "kernel", "filter", "column", "2x2", "neuron", "2:4", "at-most-5", "pairs", "rising")
LAYERS = ["2", "5", "7"]


def strengths(weights):
    """Of filters of two layers that attract each other, from the weights of both."""
    return -(weights["2"][:2].norm(dim=1) + weights["7"][:2].norm(dim=1))


ACROSS = gp.Pairwise({("2", "7"): [(0, 0), (1, 1)]}, strengths, "network", gp.Linear("square", relative=True))


def prune(model, kind, **others):
    """A structure, or pairs across layers, at a temperature that falls; or the law without one."""
    how = {"schedule": gp.LogSchedule(0.5, 1e3, 6), "structure": kind}
    how |= {"structure": "filter", "hamiltonian": ACROSS} if kind == "pairs" else {}
    how = {"law": "rising", "epochs": 2} if kind == "rising" else how
    return gp.GibbsPruner(model, 0.5, include=LAYERS, seed=3, **how, **others)


def make_net(seed=0):
    """Float64, so that the order of a sum over ranks changes no mask; the shapes make uneven shards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 5, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(5, 7, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(28, 3),
            nn.Tanh(),
            nn.Linear(3, 4),
        ).double()


def optimise(model, kind, pruner):
    """SGD; with the law that has no temperature what is active decays, too."""
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9, weight_decay=0.01 if kind == "rising" else 0.0)
    if kind == "rising":
        pruner.set_decay(optimizer, masked=0.0)
    return optimizer


def make_run(kind, seed=0, **others):
    model = make_net(seed)
    pruner = prune(model, kind, **others)
    return model, optimise(model, kind, pruner), pruner


def batch(step, part=slice(None)):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 1, 4, 4, generator=generator, dtype=torch.float64)
    return x[part], torch.randint(0, 4, (8,), generator=generator)[part]


def advance(run, start, stop, forward=None, part=slice(None)):
    model, optimizer, pruner = run
    for step in range(start, stop):
        pruner.set_epoch(step // 5)
        x, y = batch(step, part)
        F.cross_entropy((forward or model)(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        pruner.step()


def save(run, path):
    torch.save([part.state_dict() for part in run], f"{path}.new")
    os.replace(f"{path}.new", path)


def load(run, path):
    for part, state in zip(run, torch.load(path, weights_only=True)):
        part.load_state_dict(state)


def masks(pruner):
    return {name: masked.mask.clone() for name, masked in pruner.masks.items()}


def refusal(action):
    """The sentence with which an action is refused."""
    try:
        action()
    except gp.UserError as error:
        return str(error)
    return ""


# -- the jobs --------------------------------------------------------------------------------------------------------


def killed(rank, folder):
    """Saves after 12 steps and dies after 17."""
    run = make_run("kernel")
    ddp = DistributedDataParallel(run[0])
    part = slice(rank, None, 2)
    advance(run, 0, 12, ddp, part)
    if rank == 0:
        save(run, folder / "two.ckpt")
    dist.barrier()
    advance(run, 12, 17, ddp, part)
    os.kill(os.getpid(), signal.SIGKILL)


def ddp(rank, folder):
    part, out = slice(rank, None, 2), {}
    for kind in KINDS:
        run = make_run(kind, check_ranks=5)
        wrapped = DistributedDataParallel(run[0])
        advance(run, 0, 30, wrapped, part)
        out[kind] = masks(run[2])
    out["sent"] = [len(wrapped.modules_buffers), len(list(run[0].buffers()))]
    for name in ("one", "two"):
        run = make_run("kernel", seed=9)
        load(run, folder / f"{name}.ckpt")
        advance(run, 12, 30, DistributedDataParallel(run[0]), part)
        out[f"resumed from {name}"] = masks(run[2])
    model = make_net(seed=rank)
    wrapped = DistributedDataParallel(model)  # before the pruner, which then finds the same weights everywhere
    pruner = prune(model, "weight", check_ranks=1)
    advance((model, torch.optim.SGD(model.parameters(), 0.2, momentum=0.9), pruner), 0, 5, wrapped, part)
    out["pruner last"] = masks(pruner)
    # Models that start differently, as DDP allows: they have the same masks once it has sent rank 0's weights.
    run = make_run("weight", seed=rank)
    wrapped = DistributedDataParallel(run[0])
    out["before restart"] = refusal(run[2].step)
    run[2].restart()
    advance(run, 0, 5, wrapped, part)
    out["after restart"] = masks(run[2])
    # What must be noticed.
    run = make_run("filter", check_ranks=3)
    advance(run, 0, 6)
    run[2].masks["5"].mask[0, rank] ^= True
    out["mask"] = refusal(run[2].step)
    run = make_run("weight", check_ranks=1)
    run[2]._drawing.generators[torch.device("cpu")].manual_seed(rank)
    out["stream"] = refusal(run[2].step)
    run = make_run("weight", check_ranks=0)
    run[2].masks["5"].mask[0, rank] ^= True
    out["unchecked"] = refusal(run[2].step)
    torch.save(out, folder / f"ddp-{rank}.pt")


def fsdp(rank, folder):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, part, out = init_device_mesh("cpu", (2,)), slice(rank, None, 2), {}
    for first in ("pruner", "shards"):
        for kind in KINDS:
            model = make_net()

            def shard(model=model):
                fully_shard(model[2], mesh=mesh)
                fully_shard(model, mesh=mesh)

            if first == "shards":
                shard()
            pruner = prune(model, kind, check_ranks=2)
            if first == "pruner":
                shard()
            optimizer = optimise(model, kind, pruner)
            run = model, optimizer, pruner
            advance(run, 0, 10, part=part)
            x = batch(99)[0]
            record = {"masks": masks(pruner), "eval": model.eval()(x).detach(), "agreement": pruner.agreement()}
            record["local"] = [tuple(p.to_local().shape) for p in model.parameters()]
            record["saved"] = pruner.state_dict()["masks"]
            pruner.finalize("converged")
            record["final"] = model(x).detach()
            model.train()
            for step in range(3):  # the zeros last
                F.cross_entropy(model(batch(step, part)[0]), batch(step, part)[1]).backward()
                optimizer.step()
                optimizer.zero_grad()
            record["state"] = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
            record["achieved"] = pruner.summary().achieved
            model.float()  # torch swaps the shards for others
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            torch.optim.SGD(model.parameters(), 0.1).step()
            record["moved"] = pruner.summary().achieved
            out[first, kind] = record
    torch.save(out, folder / f"fsdp-{rank}.pt")


def whole_states(run):
    """What is saved of a run, whole however many ranks hold parts of it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    model, optimizer, pruner = run
    return [*get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True)), pruner.state_dict()]


def load_whole(run, states):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    model, optimizer, pruner = run
    options = StateDictOptions(full_state_dict=True)
    set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=options)
    pruner.load_state_dict(states[2])


def resharded(rank, folder):
    """Ten steps on shards, from the saved run of one process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, _, pruner = make_run("kernel", seed=9, check_ranks=2)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    run = model, torch.optim.SGD(model.parameters(), 0.2, momentum=0.9), pruner
    load_whole(run, torch.load(folder / "whole.ckpt", weights_only=True))
    advance(run, 10, 20, part=slice(rank, None, 2))
    torch.save(whole_states(run), folder / f"resharded-{rank}.pt")


def trainers(rank, folder):
    """Both callbacks under DDP, on models that start differently, as both trainers allow."""
    from lightning import pytorch

    import test_integrations_lightning as lightning_tests
    import test_integrations_transformers as transformers_tests

    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    os.environ |= dict(zip(names, map(str, (rank, rank, 0, 2, 2, "test"))))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # the group is there already
    out = {}
    for law, given in lightning_tests.LAWS.items():
        callback = lightning_tests.pruning(0.75, check_ranks=2, draw="converged", **given)
        module = lightning_tests.make_module(pytorch, seed=rank)
        settings = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": True}
        lightning_tests.make_trainer(pytorch, folder, [callback], **settings).fit(module, lightning_tests.make_loader())
        lightning_tests.check_final(module, law=law)
        out[f"lightning, {law}"] = {"steps": callback.pruner.steps, "model": module.state_dict()}
        callback = transformers_tests.pruning(0.75, law=law, check_ranks=2, draw="converged")
        model = transformers_tests.make_model(seed=rank)
        trainer = transformers_tests.make_trainer(model, folder, callback)
        trainer.train()
        transformers_tests.check_final(model, law=law)
        out[f"transformers, {law}"] = {"steps": callback.pruner.steps, "model": model.state_dict()}
    torch.save(out, folder / f"trainers-{rank}.pt")


if __name__ == "__main__":
    job, rank, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / job}.store", rank=rank, world_size=2)
    jobs = {"killed": killed, "ddp": ddp, "fsdp": fsdp, "resharded": resharded, "trainers": trainers}
    jobs[job](rank, folder)
    dist.barrier()  # nobody hangs up while the other still listens
    dist.destroy_process_group()
    sys.stderr.flush()
    os._exit(0)  # shards keep the group alive, whose threads may abort a process while Python shuts down
