"""Two gloo processes against one: the same masks under DDP and FSDP2, killed and resumed, and what must be noticed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import gibbsprune as gp
from gibbsprune.distributed import compare_ranks, digest
from rank_jobs import KINDS, advance, batch, load, load_whole, make_run, masks, save, whole_states

SCRIPT = Path(__file__).with_name("rank_jobs.py")


def two_ranks(job, folder, seconds=300, script=SCRIPT):
    """Runs a job on two ranks and returns how they ended."""
    ranks = [
        subprocess.Popen([sys.executable, script, job, str(rank), folder], stderr=subprocess.PIPE) for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=seconds)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [rank.returncode for rank in ranks], "\n".join(errors)


def results(job, folder):
    codes, errors = two_ranks(job, folder)
    assert codes == [0, 0], errors
    return [torch.load(folder / f"{job}-{rank}.pt", weights_only=True) for rank in range(2)]


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.fixture(scope="module")
def straight():
    """The masks of a single process fed the whole batches, after 30 steps."""
    out = {}
    for kind in KINDS:
        run = make_run(kind)
        advance(run, 0, 30)
        out[kind] = masks(run[2])
    return out


@pytest.mark.slow
def test_data_parallel(tmp_path, straight):
    run = make_run("kernel")
    advance(run, 0, 12)
    save(run, tmp_path / "one.ckpt")
    assert two_ranks("killed", tmp_path)[0] == [-9, -9]
    ranks = results("ddp", tmp_path)
    for found in ranks:
        for kind in KINDS:
            assert same(found[kind], straight[kind]), f"{kind}: equal to a single process fed the same batches"
        assert same(found["resumed from one"], straight["kernel"]), "started on one, resumed on two"
        assert same(found["resumed from two"], straight["kernel"]), "killed on two, resumed on two"
        assert found["sent"] == [0, 15], "neither masks nor what goes with them are broadcast"
        assert found["before restart"].startswith("the ranks differ in the masks after 0 steps: every rank needs")
        assert found["mask"].startswith("the ranks differ in the masks after 6 steps: every rank needs the same seed")
        assert found["stream"].startswith("the ranks differ in the random stream after 0 steps")
        assert found["unchecked"] == ""
    resumed = make_run("kernel", seed=5)
    load(resumed, tmp_path / "two.ckpt")
    advance(resumed, 12, 30)
    assert same(masks(resumed[2]), straight["kernel"]), "killed on two, resumed on one"
    alone = make_run("weight")
    advance(alone, 0, 5)
    for found in ranks:
        assert same(found["after restart"], masks(alone[2]))
        assert same(found["pruner last"], masks(alone[2]))


@pytest.mark.slow
def test_sharded_weights(tmp_path):
    ranks = results("fsdp", tmp_path)
    for (first, kind), record in ranks[0].items():
        other = ranks[1][first, kind]
        model, optimizer, pruner = run = make_run(kind)
        advance(run, 0, 10)
        x = batch(99)[0]
        outputs = model.eval()(x).detach()
        agreement, saved = pruner.agreement(), pruner.state_dict()["masks"]
        drawn = masks(pruner)
        assert (4, 5, 3, 3) in record["local"]
        assert (3, 5, 3, 3) in other["local"], "uneven shards"
        pruner.finalize("converged")
        final = model(x).detach()
        model.train()
        for step in range(3):
            F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
        for found in (record, other):
            assert same(found["masks"], drawn), f"{kind}, {first} first: equal to the unsharded ones"
            assert same(found["saved"], saved), "states do not depend on the number of ranks"
            assert found["agreement"] == agreement
            torch.testing.assert_close(found["eval"], outputs)
            torch.testing.assert_close(found["final"], final)
            assert found["achieved"] == pruner.summary().achieved, "zeros last in further training"
            assert found["moved"] == found["achieved"], "and in another dtype"
        state = model.state_dict()
        assert record["state"].keys() == state.keys()
        torch.testing.assert_close(record["state"], dict(state))


@pytest.mark.slow
def test_the_page_runs_on_two_ranks(tmp_path):
    text = (SCRIPT.parents[1] / "docs/how_to/several_gpus.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.S))
    alone = "init_method=store, rank=0, world_size=1"
    assert alone in code
    two = f'init_method="file://{tmp_path}/store", rank=int(sys.argv[2]), world_size=2'
    (tmp_path / "page.py").write_text("import sys\n" + code.replace(alone, two), encoding="utf-8")
    codes, errors = two_ranks("page", tmp_path, script=tmp_path / "page.py")
    assert codes == [0, 0], errors


@pytest.mark.slow
def test_shards_resume_from_one_process_and_one_process_from_shards(tmp_path):
    run = make_run("kernel")
    advance(run, 0, 10)
    torch.save(whole_states(run), tmp_path / "whole.ckpt")
    states = results("resharded", tmp_path)[0]
    other = make_run("kernel", seed=7)
    load_whole(other, states)
    advance(run, 10, 20)
    torch.testing.assert_close(dict(other[0].state_dict()), dict(run[0].state_dict()))
    for part in (run, other):
        advance(part, 20, 30)
    assert same(masks(other[2]), masks(run[2]))


@pytest.mark.slow
def test_callbacks_on_two_ranks(tmp_path):
    pytest.importorskip("lightning", reason="Lightning is not installed")
    pytest.importorskip("transformers", reason="Transformers is not installed")
    first, second = results("trainers", tmp_path)
    assert len(first) == 4
    for name in first:
        assert first[name]["steps"] == second[name]["steps"] == 6
        assert same(first[name]["model"], second[name]["model"])


def test_a_digest_tells_masks_apart():
    generator = torch.Generator().manual_seed(0)
    first = [torch.rand(n, generator=generator) < 0.5 for n in (1, 7, 64, 1001)]
    assert digest(first) == digest([m.clone() for m in first])
    seen = {digest(first), digest(reversed(first)), digest([first[0], *first])}
    assert len(seen) == 3
    for mask in first:
        for place in range(mask.numel()):
            mask[place] ^= True
            seen.add(digest(first))
            mask[place] ^= True
    mask = first[2]
    for a in range(64):  # and any two bits, which a plain sum would not see
        for b in range(a):
            mask[[a, b]] ^= True
            seen.add(digest(first))
            mask[[a, b]] ^= True
    assert len(seen) == 3 + 1 + 7 + 64 + 1001 + 64 * 63 // 2


def test_a_single_process_compares_nothing():
    compare_ranks(0, 1.0, [], [])
    with pytest.raises(gp.UserError, match=r"^check_ranks is -1: allowed are whole numbers from 0$"):
        make_run("weight", check_ranks=-1)


def test_a_stream_saved_on_rank_0_goes_to_the_device_of_each_rank():
    run = make_run("weight")
    advance(run, 0, 2)
    state = run[2].state_dict()
    state["generators"] = {"cpu:0": state["generators"]["cpu"]}
    other = make_run("weight", seed=1)
    other[0].load_state_dict(run[0].state_dict())
    other[2].load_state_dict(state)
    run[2].step()
    other[2].step()
    assert same(masks(run[2]), masks(other[2]))
