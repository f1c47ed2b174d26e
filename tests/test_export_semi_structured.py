"""Packing to 2:4: what is refused and why, everywhere; the packed layers themselves where there is a GPU for them."""

import pytest
import torch
from torch import nn

import gibbsprune as gp
from gibbsprune.export.semi_structured import misfit, reasons

GPU = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0), reason="needs sparse tensor cores"
)


def pruned(dtype=torch.bfloat16):
    torch.manual_seed(0)
    layers = (nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    model = nn.Sequential(*layers).to(dtype)
    return gp.GibbsPruner(model, structure="2:4").finalize(draw="converged")


def test_every_group_is_looked_at():
    weight = torch.zeros(3, 8)
    weight[:, 0::2] = 1
    assert misfit(weight) is None
    weight[1, 5] = -1
    assert misfit(weight) == (
        "not 2:4: output 1 keeps 3 of its inputs 4 to 7, and 16.7% of all groups keep more than two"
    )
    assert misfit(torch.zeros(2, 6)) == "6 inputs, which four does not divide"
    assert misfit(torch.zeros(2, 8)) is None


def test_the_reasons_of_layers_that_are_left():
    class Own(nn.Linear):
        pass

    model = nn.ModuleDict({
        "good": nn.Linear(8, 4), "dense": nn.Linear(8, 4), "conv": nn.Conv2d(8, 4, 1), "own": Own(8, 4),
        "first": nn.Linear(8, 4), "second": nn.Linear(8, 4), "wide": nn.Linear(8, 4),
    }).bfloat16()  # fmt: skip
    model["wide"].float()
    for name, module in model.items():
        if name != "dense":
            module.weight.data.mul_(gp.converged_mask(module.weight.data, None, "2:4"))
    model["second"].weight = model["first"].weight
    why = reasons(model)
    assert why.pop("dense").startswith("not 2:4: output 0 keeps 4 of its inputs 0 to 3, and ")
    assert why == {
        "conv": "a Conv2d: torch.sparse has nn.Linear only",
        "own": "a Own: torch.sparse has nn.Linear only",
        "first": "its weight is another layer's, too",
        "second": "its weight is another layer's, too",
        "wide": "in float32: allowed are bfloat16, float16",
    }


def test_masks_must_be_burnt_in_first():
    model = nn.Sequential(nn.Linear(128, 128))
    gp.GibbsPruner(model, structure="2:4", include="0")
    with pytest.raises(gp.UserError, match=r"^the model still carries masks: finalize it before packing it to 2:4$"):
        gp.to_semi_structured(model)
    with pytest.raises(gp.UserError, match=r"^model is a dict: allowed are torch.nn.Module$"):
        gp.to_semi_structured(dict(model.state_dict()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_one_sentence():
    with pytest.raises(gp.UserError, match=r"^2:4 runs on NVIDIA GPUs only, and torch sees none here$"):
        gp.to_semi_structured(pruned())


@GPU
def test_a_packed_network_computes_the_same():
    model = pruned().cuda()
    packed = gp.to_semi_structured(model)
    assert packed.report.packed == ["0", "2"]
    assert list(packed.report.left) == ["4"]
    assert str(packed.report).startswith("2 of 3 layers packed to 2:4")
    x = torch.randn(40, 128, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(packed(x), model.eval()(x), atol=2e-2, rtol=2e-2)
    with pytest.raises(gp.UserError, match="no layer can be packed to 2:4; of 1 the first, '0': not 2:4"):
        gp.to_semi_structured(nn.Sequential(nn.Linear(128, 128)).cuda().bfloat16())


def test_onnx_keeps_the_pattern(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 16))
    model = gp.GibbsPruner(model, structure="2:4", include=["0", "4"]).finalize(draw="converged")
    gp.export_onnx(model.eval(), torch.randn(2, 4, 6, 6), tmp_path / "network.onnx")
    found = [onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "network.onnx").graph.initializer]
    shapes = set()
    for array in (torch.from_numpy(a.copy()) for a in found if a.ndim > 1):
        weight = array.T if array.shape == (128, 16) else array
        kept = gp.NM(2, 4).rows(weight.contiguous() != 0).sum(1)
        assert bool((kept == 2).all())
        shapes.add(tuple(weight.shape))
    assert shapes == {(8, 4, 3, 3), (16, 128)}
