"""A network as an ONNX file, checked with ONNX Runtime against PyTorch before it is written."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..attaching import check_plain
from ..errors import UserError
from ..files import write_atomic
from ..looking import arguments, plain_eval, quiet
from .equality import difference, own_error, rounding
from .int8 import quantized
from .pixels import with_pixels
from .signature import by_name, exported, first_line, lengths_of, names_of, split, tensors_of

DTYPES = ("float32", "float16", "int8")
TOLERANCE = {"float32": 1e-4, "float16": 5e-2, "int8": 0.25}


@dataclass(frozen=True)
class ExportReport:
    """The size of the file, and max |difference| / max |output| to PyTorch, the worst of several batch sizes."""

    size: int
    difference: float


def export_onnx(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    path: str | os.PathLike[str],
    dtype: str = "float32",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    metadata: Mapping[str, str] | None = None,
    calibration: Tensor | Sequence[Tensor] | Mapping[str, Tensor] | None = None,
) -> ExportReport:
    """Write the eval mode of a finalized model to ``path``, with a free batch size.

    The file is run with ONNX Runtime at the example inputs, at their batch size, at one and at three more, and
    refused if it differs from PyTorch. Inputs are called "input", or "input_0", "input_1" and so on; those given by
    name keep their names. The length of sequences of tokens is free too, where the model allows it. Models of
    transformers are exported without their cache.

    Args:
        model: a finalized model.
        example_inputs: one input, the sequence of the arguments of ``forward``, or a dict of named ones.
        path: of the file.
        dtype: that of the stored weights: with "float16" the file is half as large, and its runtime still computes in
            float32; with "int8" it is a quarter, computes in eight bits, and zeros stay zeros
            (:mod:`gibbsprune.export.int8`).
        mean: given with ``std``, the file takes raw pixels, uint8 of (batch, rows, columns, channels), and computes
            (pixel / 255 − mean) / std itself; else it takes what the model takes.
        std: the standard deviation of each channel, of pixels / 255 as the mean is.
        metadata: further texts for the file to carry, by name.
        calibration: with "int8", some hundreds of training inputs, as the model takes them, by which the ranges of
            activations are chosen.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype is '{dtype}'; allowed for ONNX are {', '.join(DTYPES)}.")
    if (dtype == "int8") != (calibration is not None):
        raise UserError(f"dtype is '{dtype}': calibration is given with int8, and only then")
    onnx, _ = _packages()
    bare, names = model, names_of(model, example_inputs)
    model, inputs = with_pixels(*prepared(model, tensors_of(names, example_inputs)), mean, std)
    called = names or (["input"] if len(inputs) == 1 else [f"input_{i}" for i in range(len(inputs))])
    with quiet(), torch.no_grad(), plain_eval(model):
        program = exported(
            lambda args, named, shapes: torch.onnx.export(
                model, args, kwargs=named, dynamo=True, dynamic_shapes=shapes, input_names=called, verbose=False
            ),
            inputs,
            names,
            "the model cannot be exported to ONNX",
        )
    proto = program.model_proto
    if dtype == "float16":
        _halve(onnx, proto)
    if dtype == "int8":
        _, given = with_pixels(*prepared(bare, tensors_of(names, calibration)), mean, std)
        with quiet():
            proto = quantized(onnx, proto, given)
    _strip(proto)
    onnx.helper.set_model_props(proto, dict(metadata or {}))
    content = proto.SerializeToString()
    sizes = [[size.dim_param for size in given.type.tensor_type.shape.dim] for given in proto.graph.input]
    with plain_eval(model):
        plain = by_name(model, names)
        worst = compared(plain, open_onnx(content), *lengths_of(plain, inputs, sizes))
        close = worst <= max(TOLERANCE[dtype], rounding(model))
        if not close and not worst <= 4 * own_error(model, *split(inputs, names)):
            raise UserError(
                f"the ONNX file would differ from PyTorch by {worst:.1e} of the output's scale; not written."
            )
    write_atomic(path, content)
    return ExportReport(len(content), worst)


def open_onnx(content: bytes) -> Callable[..., list[Tensor]]:
    """The network of an ONNX file as a function of tensors."""
    _, runtime = _packages()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has no kernels for some types
        raise UserError(f"ONNX Runtime does not take the exported model: {first_line(error)}") from error

    def run(*given: Tensor) -> list[Tensor]:
        try:
            found = session.run(None, {i.name: x.numpy() for i, x in zip(session.get_inputs(), given)})
        except Exception as error:  # some kernels refuse a type only when they are run
            raise UserError(f"ONNX Runtime does not run the exported model: {first_line(error)}") from error
        return [torch.from_numpy(y) for y in found]

    return run


def export_pt2(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    path: str | os.PathLike[str],
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> ExportReport:
    """Write the eval mode of a finalized model as a torch.export program, checked after reading it back.

    Args:
        model: a finalized model.
        example_inputs: one input, the sequence of the arguments of ``forward``, or a dict of named ones, by whose names
            the program is called.
        path: of the file.
        mean: with ``std``, the program takes raw pixels, as in :func:`export_onnx`.
        std: the standard deviation of each channel.
        metadata: further texts for the file to carry: as JSON in its extra file ``metadata.json``.
    """
    names = names_of(model, example_inputs)
    model, inputs = with_pixels(*prepared(model, tensors_of(names, example_inputs)), mean, std)
    with quiet(), torch.no_grad(), plain_eval(model):
        program = exported(
            lambda args, named, shapes: torch.export.export(model, args, named, dynamic_shapes=shapes),
            inputs,
            names,
            "the model cannot be exported by torch.export",
        )
        buffer = io.BytesIO()
        try:
            torch.export.save(program, buffer, extra_files={"metadata.json": json.dumps(dict(metadata or {}))})
        except Exception as error:  # a type that has no form in the file
            raise UserError(f"the model cannot be exported by torch.export: {first_line(error)}") from error
        again = torch.export.load(io.BytesIO(buffer.getvalue())).module()
        nodes = [node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
        sizes = [["" if isinstance(size, int) else str(size) for size in node.meta["val"].shape] for node in nodes]
        plain = by_name(model, names)
        worst = compared(plain, by_name(again, names), *lengths_of(plain, inputs, sizes))
    if not worst <= TOLERANCE["float32"]:
        raise UserError(f"the exported program would differ by {worst:.1e} of the output's scale; not written.")
    write_atomic(path, buffer.getvalue())
    return ExportReport(len(buffer.getvalue()), worst)


def prepared(model: nn.Module, example_inputs: Any) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model in eval mode on the CPU, and inputs of at least two rows; masks that are still in place are refused."""
    import copy

    check_plain(model, "exporting")
    inputs, named = arguments(example_inputs)
    if named or not all(isinstance(x, Tensor) and x.dim() and len(x) for x in inputs):
        raise UserError("example_inputs must be tensors with a batch dimension.")
    inputs = tuple(x.cpu() if len(x) > 1 else torch.cat([x, x]).cpu() for x in inputs)
    return copy.deepcopy(model).cpu().eval(), inputs


@torch.no_grad()
def compared(model: Callable[..., Any], other: Callable[..., Any], *given: tuple[Tensor, ...]) -> float:
    """The largest difference of two functions at these inputs, at one row of them, and at three rows more."""
    worst = 0.0
    for inputs in given:
        count = len(inputs[0])
        for rows in (torch.arange(count), torch.arange(1), torch.arange(count + 3) % count):
            expected, found = (  # each of its own copy, as it may overwrite its input
                pytree.tree_leaves(function(*(x[rows].contiguous() for x in inputs))) for function in (model, other)
            )
            if len(expected) != len(found) or any(a.shape != b.shape for a, b in zip(expected, found)):
                return float("inf")
            worst = max(worst, difference(expected, found))
    return worst


def _packages() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  the exporter's own
    except ImportError as error:
        raise UserError(f"ONNX needs the package {error.name}: pip install 'gibbsprune[export]'") from error
    return onnx, onnxruntime


def _strip(proto: Any) -> None:
    """Take out what the exporter says of where each node comes from: files and lines of the machine it ran on."""
    for part in (*proto.graph.node, *proto.graph.value_info, *proto.graph.input, *proto.graph.output, proto.graph):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")


def _halve(onnx: Any, proto: Any) -> None:
    """Store float32 weights as float16, each behind a cast back to float32, which the runtime does once."""
    import numpy as np

    graph = proto.graph
    casts = []
    for tensor in graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.ndim < 2:
            continue
        if np.abs(values).max(initial=0) > np.finfo(np.float16).max:
            raise UserError(f"'{tensor.name}' has values too large for float16; export it as float32.")
        name = tensor.name
        tensor.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float16), f"{name}_half"))
        cast = onnx.helper.make_node("Cast", [f"{name}_half"], [name], to=onnx.TensorProto.FLOAT)
        casts.append(cast)
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    names = {cast.output[0] for cast in casts}
    kept = [value for value in graph.value_info if value.name not in names]
    del graph.value_info[:]
    graph.value_info.extend(kept)
