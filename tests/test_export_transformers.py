"""Networks of transformers, from configuration classes: pruned, finalized, compacted, the same function."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export_zoo import Leaky, unnamed
from gibbsprune import GibbsPruner, UserError, compact, export_onnx, export_pt2
from gibbsprune.export import compaction
from gibbsprune.export.aten import capture
from gibbsprune.export.compaction import CompactReport
from gibbsprune.export.equality import difference
from gibbsprune.looking import plain_eval

transformers: Any = pytest.importorskip("transformers")
WORDS = 40
TEXT = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
ROTARY = {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}


def images(size: int = 32) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def tokens(name: str = "input_ids", length: int = 7) -> dict[str, Tensor]:
    return {name: torch.randint(3, WORDS, (2, length))}


def detr() -> Any:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in SIDES.items()}
    return transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=16,
        num_queries=5,
        num_labels=4,
        **sizes,
    )


SIDES = {"layers": 1, "attention_heads": 2, "ffn_dim": 24}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 5}
EFFICIENT = {
    **{"width_coefficient": 0.1, "depth_coefficient": 0.2, "image_size": 32, "hidden_dim": 128, "num_labels": 5},
    **{"in_channels": [16, 16], "out_channels": [16, 24], "kernel_sizes": [3, 5], "strides": [1, 2]},
    **{"num_block_repeats": [1, 2], "expand_ratios": [1, 4], "depthwise_padding": [], "depth_divisor": 4},
}
SEGMENTS = {
    **{"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [3, 3]},
    **{
        "strides": [2, 2],
        "num_attention_heads": [1, 2],
        "mlp_ratios": [2, 2],
        "decoder_hidden_size": 12,
        "num_labels": 5,
    },
}
SOUNDS = {
    **{**TEXT, "conv_dim": [8, 8], "conv_stride": [4, 2], "conv_kernel": [5, 3], "num_conv_pos_embeddings": 4},
    **{"num_conv_pos_embedding_groups": 2, "classifier_proj_size": 12, "num_feat_extract_layers": 2},
}
MADE: dict[str, tuple[str, Callable[[], Any], Callable[[], dict[str, Tensor]]]] = {
    "resnet": (
        "ResNetForImageClassification",
        lambda: transformers.ResNetConfig(embedding_size=8, layer_type="bottleneck", **STAGES),
        images,
    ),
    "regnet": (
        "RegNetForImageClassification",
        lambda: transformers.RegNetConfig(embedding_size=8, hidden_sizes=[16, 24], depths=[1, 1], groups_width=4),
        images,
    ),
    "mobilenetv2": (
        "MobileNetV2ForImageClassification",
        lambda: transformers.MobileNetV2Config(depth_multiplier=0.1, image_size=96, min_depth=4, depth_divisible_by=4),
        lambda: images(96),  # the last maps are of 3 × 3, on which all taps of a kernel count
    ),
    "efficientnet": (
        "EfficientNetForImageClassification",
        lambda: transformers.EfficientNetConfig(**EFFICIENT),
        images,
    ),
    "convnext": ("ConvNextForImageClassification", lambda: transformers.ConvNextConfig(num_stages=2, **STAGES), images),
    "convnextv2": (
        "ConvNextV2ForImageClassification",
        lambda: transformers.ConvNextV2Config(num_stages=2, **STAGES),
        images,
    ),
    "segformer": ("SegformerForSemanticSegmentation", lambda: transformers.SegformerConfig(**SEGMENTS), images),
    "detr": ("DetrForObjectDetection", detr, images),
    "swin": (
        "SwinForImageClassification",
        lambda: transformers.SwinConfig(
            image_size=32, patch_size=4, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=4, mlp_ratio=2.0
        ),
        images,
    ),
    "vit": (
        "ViTForImageClassification",
        lambda: transformers.ViTConfig(**{**TEXT, "image_size": 32, "patch_size": 8, "num_labels": 5}),
        images,
    ),
    "bert": (
        "BertForSequenceClassification",
        lambda: transformers.BertConfig(max_position_embeddings=7, **TEXT),
        tokens,
    ),
    "distilbert": (
        "DistilBertForSequenceClassification",
        lambda: transformers.DistilBertConfig(
            vocab_size=WORDS, dim=16, n_layers=1, n_heads=2, hidden_dim=24, max_position_embeddings=7
        ),
        tokens,
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        lambda: transformers.GPT2Config(
            vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=7, bos_token_id=1, eos_token_id=2
        ),
        tokens,
    ),
    "llama": ("LlamaForCausalLM", lambda: transformers.LlamaConfig(**ROTARY), tokens),
    "t5": (
        "T5ForConditionalGeneration",
        lambda: transformers.T5Config(
            vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0
        ),
        lambda: {**tokens(), **tokens("decoder_input_ids", 5)},
    ),
    "mamba": (
        "MambaForCausalLM",
        lambda: transformers.MambaConfig(
            vocab_size=WORDS, hidden_size=16, state_size=4, num_hidden_layers=1, expand=2, time_step_rank=4
        ),
        tokens,
    ),
    "mixtral": ("MixtralForCausalLM", lambda: transformers.MixtralConfig(num_local_experts=3, **ROTARY), tokens),
    "wav2vec2": (
        "Wav2Vec2ForSequenceClassification",
        lambda: transformers.Wav2Vec2Config(**SOUNDS),
        lambda: {"input_values": torch.randn(2, 120)},
    ),
}


def made(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network in eval mode, with biases and scales as a trained one has them, and inputs."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    kind, config, inputs = MADE[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, kind)(config())
        for p in model.parameters():
            if p.dim() == 1:
                p.data += 0.3 * torch.randn(p.shape)
        norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        for norm in norms:
            norm.momentum = None  # the average over all that it sees
        if norms:
            model.train()(**{k: _like(v, False) for k, v in inputs().items()})
        return model.eval(), inputs()


def live_weights(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, int]:
    """The number of non-zero weights on which the outputs depend, by their gradients at random inputs, in float64."""
    model = in_float64(model)
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for outputs in answers(model, inputs):
        model.zero_grad()
        sum((y * torch.randn_like(y)).sum() for y in outputs).backward()
        for name, p in model.named_parameters():
            total[name] += 0 if p.grad is None else p.grad.abs()
    return {name: int(((p != 0) & (total[name] != 0)).sum()) for name, p in model.named_parameters()}


def vary(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Which entries of the outputs depend on the inputs."""
    with torch.no_grad():
        return [(y != y[:1]).any(0) for y in next(answers(in_float64(model), inputs))]


def in_float64(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model).double()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # torch multiplies experts at once in float32 at most
    return model.requires_grad_()


def answers(model: nn.Module, inputs: dict[str, Tensor]) -> Iterator[list[Tensor]]:
    """All outputs at random inputs, twice; ReLUs let everything through."""
    with plain_eval(model), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for _ in range(2):
            given = {k: _like(v, True) for k, v in inputs.items()}
            with Leaky():
                yield [y for y in model(**given).values() if isinstance(y, Tensor)]


def _like(x: Tensor, wide: bool) -> Tensor:
    sizes = (16, *x.shape[1:])
    if not x.is_floating_point():
        return torch.randint(WORDS, sizes)
    return 2 * torch.randn(sizes, dtype=torch.float64 if wide else torch.float32)


EXCLUDED = {
    "efficientnet": "*squeeze_excite*",
    "wav2vec2": "*pos_conv*",
    **dict.fromkeys(("t5", "mamba", "gpt2"), "lm_head"),
}


def pruned(name: str, structure: str) -> tuple[nn.Module, dict[str, Tensor]]:
    model, inputs = made(name)
    examples = inputs if structure == "filter" else None
    how: Any = {"structure": structure, "exclude": EXCLUDED.get(name), "example_inputs": examples, "law": "annealed"}
    pruner = GibbsPruner(model, 0.6, **how)
    return pruner.finalize("converged").eval(), inputs


#: What stays above the bound with filters, and is named layer by layer: norms over constant channels, experts in one
#: parameter.
ABOVE = {"convnextv2", "mixtral"}


@pytest.mark.parametrize("name", MADE)
def test_architectures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each structure the same function at several batch sizes, no larger than what lives in it, or named; no output
    is removed."""
    graphs: list[Any] = []

    def captured(model: nn.Module, inputs: Any) -> Any:
        """The graph of the first of the networks, which is that of all, with the weights of this one."""
        graphs[:] = graphs or [capture(model, inputs)]
        assert not graphs[0].load_state_dict(model.state_dict(), strict=False).missing_keys
        return graphs[0]

    monkeypatch.setattr(compaction, "capture", captured)
    dense, inputs = made(name)
    whole, convolves = vary(dense, inputs), any(isinstance(part, (nn.Conv1d, nn.Conv2d)) for part in dense.modules())
    for structure in ("filter", "kernel", "weight") if convolves else ("filter", "weight"):  # kernels of one weight
        model, inputs = pruned(name, structure)
        assert all(torch.equal(a, b) for a, b in zip(vary(model, inputs), whole, strict=True)), structure
        small: Any = compact(model, inputs)
        assert isinstance(small.report, CompactReport)
        assert "the whole model" not in small.report.left, small.report
        for rows in (1, 3):
            given = {k: torch.cat([v, v])[:rows] for k, v in inputs.items()}
            with torch.no_grad(), plain_eval(model):
                assert difference(dict(model(**given)), dict(small(**given))) <= 1e-4, structure
        live = live_weights(model, inputs)
        after = sum(p.numel() for p in small.parameters())
        assert unnamed(model, small, live) == [], structure
        assert after == small.report.parameters_after <= small.report.parameters_before
        if structure == "filter":
            assert after < small.report.parameters_before
            assert after <= 1.15 * sum(live.values()) or name in ABOVE, (after, live)
        else:  # what does not leave is zero
            assert sum(int((p != 0).sum()) for p in small.parameters()) <= 1.15 * sum(live.values())


def test_language_models_are_exported_by_name(tmp_path: Path) -> None:
    """Without the cache that generation would use, and for texts of any length."""
    runtime: Any = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, inputs = made("gpt2")
    inputs = {"attention_mask": torch.ones(2, 7, dtype=torch.long), **inputs}  # not in the order of forward
    export_onnx(model, inputs, tmp_path / "net.onnx")
    session = runtime.InferenceSession(tmp_path / "net.onnx")
    assert {given.name for given in session.get_inputs()} == set(inputs)
    more = {"input_ids": torch.randint(3, WORDS, (3, 4)), "attention_mask": torch.tensor([[1, 1, 1, 0]] * 3)}
    with torch.no_grad(), plain_eval(model):
        expected = model(**more)
    scores, *_ = session.run(None, {name: tokens.numpy() for name, tokens in more.items()})
    torch.testing.assert_close(torch.from_numpy(scores), expected.logits, rtol=1e-4, atol=1e-4)
    assert model.config.use_cache
    export_pt2(model, inputs, tmp_path / "net.pt2")
    again = torch.export.load(tmp_path / "net.pt2").module()
    torch.testing.assert_close(again(**more)["logits"], expected.logits, rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match="allowed is a dict of input_ids, attention_mask"):
        export_onnx(model, inputs, tmp_path / "net.onnx", dtype="int8", calibration=torch.zeros(2, 7))


def test_it_trains_and_saves(tmp_path: Any) -> None:
    model, inputs = pruned("vit", "filter")
    small = compact(model, inputs)
    small.train()
    loss = small(**inputs).logits.square().sum()
    loss.backward()
    assert all(p.grad is not None for p in small.parameters())
    torch.optim.SGD(small.parameters(), 1e-3).step()
    torch.save(small.state_dict(), tmp_path / "small.pt")
    again = compact(model, inputs)
    again.load_state_dict(torch.load(tmp_path / "small.pt", weights_only=True))
    small.eval()
    torch.testing.assert_close(again(**inputs).logits, small(**inputs).logits)
