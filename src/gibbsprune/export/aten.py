"""A network as one graph of ATen operators, whoever called them: modules, their subclasses or plain functions.

:func:`capture` runs ``torch.export`` on the eval mode of a model and gives back an ``fx.GraphModule`` that is called
like the model. Its nodes are

- ``placeholder``: the tensors of the inputs; ``output``: those of the outputs;
- ``get_attr``: a parameter, buffer or constant by its name in the model (:func:`attribute` reads it);
- ``call_function``: an operator of :data:`OPERATORS`, without side effects, with one result (recurrent layers have
  several); an operator outside that list is decomposed into torch's core ATen operators, and stays where torch knows no
  decomposition;
- ``call_function`` of ``aten.sym_size.int`` and of Python's ``operator``: sizes that vary with the inputs.

``node.meta["val"]`` describes the result: :func:`shape` gives the sizes at the example inputs, :func:`varies` tells
which of them are free. Rewritten to one form each: convolutions of every kind (``convolution``), batch norm in eval
mode (``batch_norm``), parts of a split (``slice``) and of an unbind (``select``), views (``reshape``), extremes whose
place nobody asks for (``amax``, ``amin``). Copies and assertions are gone.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ..errors import UserError
from ..looking import arguments, plain_eval, quiet

aten = torch.ops.aten

ACTIVATIONS = {
    *("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "sigmoid", "tanh", "hardtanh"),
    *("hardsigmoid", "hardswish", "hardshrink", "softplus", "softshrink", "softsign", "log_sigmoid", "threshold"),
    *("abs", "neg", "exp", "log", "sqrt", "rsqrt", "square", "sin", "cos", "erf", "reciprocal", "pow", "sign", "floor"),
    *("round", "clamp", "clamp_min", "clamp_max", "to", "_to_copy", "type_as"),
    *("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
}
ARITHMETIC = {"add", "sub", "mul", "div", "rsub", "maximum", "minimum", "where", "masked_fill", "prelu"}
SHAPES = {
    *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "t"),
    *("expand", "expand_as", "slice", "select", "cat", "stack", "index_select", "embedding", "repeat", "roll", "flip"),
}
PLACES = {
    *(f"{way}_pool{n}d" for way in ("max", "avg", "adaptive_max", "adaptive_avg") for n in (1, 2, 3)),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d"),
    *("upsample_bicubic2d", "upsample_trilinear3d", "pad", "constant_pad_nd"),
}
WEIGHTED = {"convolution", "linear", "batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"}
PRODUCTS = {"matmul", "bmm", "scaled_dot_product_attention"}
REDUCTIONS = {"mean", "sum", "amax", "amin", "softmax", "log_softmax"}
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
OPERATORS = frozenset(ACTIVATIONS | ARITHMETIC | SHAPES | PLACES | WEIGHTED | PRODUCTS | REDUCTIONS | RECURRENT)
"""The names of the operators that stay whole."""

_CONVOLUTIONS = {f"conv{t}{n}d": (n, t != "") for n in (1, 2, 3) for t in ("", "_transpose")}
_PARTS = {"split", "split_with_sizes", "chunk", "unbind", "unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes"}
_EVAL_NORM, _OWN_NORM = "_native_batch_norm_legit_no_training", "_native_batch_norm_legit"
_FIRST = {_EVAL_NORM, _OWN_NORM, "max_pool2d_with_indices", "max_pool3d_with_indices", "native_dropout"}
_EXTREMES = {"max": aten.amax, "min": aten.amin}
_WRITES = {"slice_scatter", "select_scatter"}
_COPIES = {"clone", "detach", "alias", "contiguous", "lift_fresh_copy", "detach_", "lift_fresh"}
_CHECKS = {"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range_for_size"}
_VIEWS = SHAPES | _PARTS | {"detach", "alias", "contiguous", "as_strided", "narrow", "diagonal", "movedim", "view_as"}


def capture(model: nn.Module, example_inputs: Any) -> fx.GraphModule:
    """The graph of the eval mode of ``model``, whose parameters it shares; :class:`UserError` where there is none.

    Sizes of the inputs stay free where the model allows it: first those of all dimensions, else those of the batch.
    Models with a cache for generation (``config.use_cache``) are captured without it.
    """
    args, kwargs = arguments(example_inputs)
    with plain_eval(model), torch.no_grad():
        try:
            program = _export(model, args, kwargs)
        except Exception as error:  # whatever the model's own code or the exporter's many steps raise
            behind = error.__cause__ or error
            line = next((s.strip() for s in str(behind).splitlines() if s.strip()), type(behind).__name__)
            raise UserError(f"the network cannot be captured as a graph: {line}") from error
        if _mutates(program.graph) or _unknown(program.graph):
            table = torch.export.default_decompositions()
            for op in [op for op in table if _name(op) in OPERATORS | _WRITES | set(_CONVOLUTIONS)]:
                table.pop(op)
            program = program.run_decompositions(table)
        unlifted = _module(program)
    graph = unlifted.graph
    _one_form(graph)
    if not any(isinstance(value, (tuple, list, Mapping)) for value in (*args, *kwargs.values())):
        _plain_signature(graph)
    module = fx.GraphModule(unlifted, graph)
    drop_unread(module)
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)):
        _share(module, name, tensor)
    return module.eval()


def attribute(module: fx.GraphModule, node: fx.Node) -> Any:
    """What a ``get_attr`` node reads."""
    return operator.attrgetter(str(node.target))(module)


def shape(node: fx.Node) -> tuple[int, ...]:
    """The sizes of a node's (first) tensor at the example inputs; empty where it is not a tensor."""
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return tuple(_hint(size) for size in value.shape) if isinstance(value, Tensor) else ()


def varies(node: fx.Node) -> tuple[bool, ...]:
    """Which sizes of a node's tensor are free, such as that of the batch."""
    value = node.meta.get("val")
    sizes = value.shape if isinstance(value, Tensor) else ()
    return tuple(isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None for size in sizes)


def op_name(node: fx.Node) -> str:
    """The name of an ATen operator, without its overload; empty for other nodes."""
    return _name(node.target) if node.op == "call_function" else ""


def _name(target: Any) -> str:
    packet = getattr(target, "overloadpacket", None)
    return packet.__name__ if packet is not None and str(packet).startswith("aten.") else ""


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch.export with every size free, else with those of the batch alone, else with none.

    Images of free size go through windows and tokens only with minutes of symbolic algebra: there only the batch is.
    """
    found: Exception | None = None
    images = any(isinstance(x, Tensor) and x.dim() > 3 for x in (*args, *kwargs.values()))
    tokens = images and any(isinstance(module, (nn.LayerNorm, nn.MultiheadAttention)) for module in model.modules())
    for dims in (slice(1 if tokens else None), slice(1), slice(0)):

        def free(value: Any, dims: slice = dims) -> Any:
            if isinstance(value, Tensor):
                return dict.fromkeys(range(value.dim())[dims], torch.export.Dim.AUTO)
            if isinstance(value, Mapping):
                return {name: free(item) for name, item in value.items()}
            return type(value)(free(item) for item in value) if isinstance(value, (tuple, list)) else None

        try:
            given = copy.deepcopy((args, kwargs))
            shapes = (*(free(x) for x in args), *(free(x) for x in kwargs.values()))
            named = dict(zip(kwargs, shapes)) if not args else shapes
            with quiet():
                program = torch.export.export(model, *given, dynamic_shapes=named, strict=False)
        except Exception as error:  # a size that the exporter cannot keep free
            found = found or error
            continue
        if dims == slice(None) and any(_picky(guard) for guard in getattr(program, "_guards_code", [])):
            continue
        return program
    assert found is not None
    raise found


def _picky(guard: str) -> bool:
    """Whether the model took one of several ways because of a size, such as one divisible by its window."""
    plain = r"[^ ]+size\(\)\[\d+\]"
    return "%" in guard or (" == " in guard and not re.fullmatch(rf"{plain} == (\d+|{plain})", guard))


def _mutates(graph: fx.Graph) -> bool:
    """Whether some operator overwrites more than a fresh tensor that nobody sees through another view."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable:
            continue
        source, plain = node.args[0], op_name(node).removesuffix("_")
        views = [n for n in (source, *source.users) if op_name(n) in _VIEWS]
        if views or not hasattr(aten, plain) or node.target._overloadname not in getattr(aten, plain).overloads():
            return True
    return False


def _unknown(graph: fx.Graph) -> bool:
    known = OPERATORS | set(_CONVOLUTIONS) | _PARTS | _FIRST | _COPIES | _CHECKS | {"sym_size"}
    names = {op_name(n).removesuffix("_") for n in graph.nodes if n.op == "call_function"} - {""}
    return bool(names - known)


def _module(program: Any) -> fx.GraphModule:
    try:
        return program.module(check_guards=False)
    except TypeError:  # before torch 2.9
        return program.module()


def _one_form(graph: fx.Graph) -> None:
    """Bring operators that have several forms to one; see the head of this file."""
    for node in list(graph.nodes):
        name = op_name(node)
        if not name:
            continue
        if node.target._schema.is_mutable and name.endswith("_"):
            node.target = getattr(getattr(aten, name[:-1]), node.target._overloadname)
            source = node.args[0]
            source.replace_all_uses_with(node, lambda user, node=node: node < user)
        if name in _CHECKS:
            graph.erase_node(node)
        elif name in _COPIES or _takes_all(node, name) or _overwrites(node, name):
            node.replace_all_uses_with(node.args[1 if name == "copy" else 0])
            graph.erase_node(node)
        elif name in ("view", "_unsafe_view"):
            node.target = aten.reshape.default  # the copies that made it a view are gone
        elif name in _CONVOLUTIONS:
            _as_convolution(node, *_CONVOLUTIONS[name])
        elif name in _PARTS:
            _as_slices(node, name)
        elif name in _FIRST or name in _EXTREMES:
            _as_one(node, name)
        elif name in _WRITES:
            _as_concat(node, name)
    drop_dead(graph)
    graph.lint()


def _takes_all(node: Any, name: str) -> bool:
    return name == "slice" and shape(node) == shape(node.args[0]) and node.args[2:4] in ((0, 2**63 - 1), (None, None))


def _overwrites(node: Any, name: str) -> bool:
    if name != "copy":
        return False
    before, after = node.meta["val"], node.args[1].meta["val"]
    return shape(node) == shape(node.args[1]) and before.dtype == after.dtype


def _arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments of an operator by their names, defaults included."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = {a.name: a.default_value for a in schema if a.has_default_value()}
    return given | {a.name: value for a, value in zip(schema, node.args)} | dict(node.kwargs)


def _as_convolution(node: fx.Node, n: int, transposed: bool) -> None:
    given = _arguments(node)

    def each(name: str, default: int) -> list[Any]:
        value = given.get(name, default)
        value = [value] if isinstance(value, int) else list(value)
        return value * n if len(value) == 1 else value

    padding, before = given.get("padding", 0), node.args[0]
    kernel, dilation = shape(given["weight"])[2:], each("dilation", 1)
    if padding == "valid":
        given["padding"] = 0
    elif padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel)]
        given["padding"] = [p // 2 for p in total]
        if any(p % 2 for p in total):
            with node.graph.inserting_before(node):
                pads = [q for p in reversed(total) for q in (0, p % 2)]
                pad = node.graph.call_function(aten.pad.default, (before, pads))
            value = before.meta["val"]  # type: ignore[union-attr]
            pad.meta = {**node.meta, "val": aten.pad.default(value, pads)}
            before = pad
    node.args = (
        *(before, given["weight"], given.get("bias"), each("stride", 1), each("padding", 0), dilation),
        *(transposed, each("output_padding", 0), given.get("groups", 1)),
    )
    node.kwargs, node.target = {}, aten.convolution.default


def _as_slices(node: fx.Node, name: str) -> None:
    given = _arguments(node)
    source: Any = node.args[0]
    dim = given.get("dim", 0) % len(shape(source))
    start = 0
    for i, part in enumerate(node.meta["val"]):
        users = [user for user in node.users if user.args[1] == i]
        size = 1 if name == "unbind" else part.shape[dim]
        with node.graph.inserting_before(node):
            if name == "unbind":
                new = node.graph.call_function(aten.select.int, (source, dim, i))
            else:
                new = node.graph.call_function(aten.slice.Tensor, (source, dim, start, start + size))
        new.meta = {**node.meta, "val": part}
        start = start + size
        for user in users:
            user.replace_all_uses_with(new)
            node.graph.erase_node(user)
        if not users:
            node.graph.erase_node(new)
    node.graph.erase_node(node)


def _as_concat(node: fx.Node, name: str) -> None:
    """A tensor of which a part is overwritten, as what lies before that part, the part, and what lies behind it."""
    given, graph = _arguments(node), node.graph
    source: Any = node.args[0]
    part: Any = given["src"]
    dim = given.get("dim", 0) % len(shape(node))
    size = source.meta["val"].shape[dim]
    if name == "select_scatter":
        start = given["index"]
        end, step = start + 1, 1
    else:
        start, end, step = given.get("start") or 0, given.get("end"), given.get("step", 1)
        end = 2**63 - 1 if end is None else end
    if shape(part) == shape(node):
        node.replace_all_uses_with(part)
        graph.erase_node(node)
    if shape(part) == shape(node) or step != 1 or not all(isinstance(n, int) for n in (size, start, end)):
        return
    start, end = (max(0, min(n + size if n < 0 else n, size)) for n in (start, end))

    def made(target: Any, *args: Any) -> fx.Node:
        with graph.inserting_before(node):
            new = graph.call_function(target, args)
        new.meta = {**node.meta, "val": target(args[0].meta["val"], *args[1:])}
        return new

    ends = [made(aten.slice.Tensor, source, dim, a, b) if a < b else None for a, b in ((0, start), (end, size))]
    middle = made(aten.unsqueeze.default, part, dim) if name == "select_scatter" else part
    node.target, node.args = aten.cat.default, ([n for n in (ends[0], middle, ends[1]) if n is not None], dim)
    node.kwargs = {}


def _as_one(node: fx.Node, name: str) -> None:
    """The first result of an operator with several, as the operator that gives it alone."""
    if any(user.target is not operator.getitem or user.args[1] != 0 for user in node.users):
        return
    overload = node.target._overloadname  # type: ignore[union-attr]
    if (name == _OWN_NORM and overload != "no_stats") or (name in _EXTREMES and overload != "dim"):
        return
    if name == _EVAL_NORM:
        *tensors, momentum, eps = node.args
        node.target, node.args = aten.batch_norm.default, (*tensors, False, momentum, eps, False)
    elif name == _OWN_NORM:  # by the statistics of what comes in, as weights are standardised
        *tensors, training, momentum, eps = node.args
        node.target, node.args = aten.batch_norm.default, (*tensors, None, None, training, momentum, eps, False)
    elif name in _EXTREMES:
        source, dim, *keep = node.args
        node.target, node.args = _EXTREMES[name].default, (source, [dim], *keep)
    elif name == "native_dropout":
        node.target, node.args = aten.dropout.default, (node.args[0], node.args[1], False)
    else:
        node.target = getattr(aten, name.removesuffix("_with_indices")).default
    node.meta["val"] = node.meta["val"][0]
    for user in list(node.users):
        user.replace_all_uses_with(node)
        node.graph.erase_node(user)


def _plain_signature(graph: fx.Graph) -> None:
    """Let the graph itself say what it takes and gives, where that are tensors by name and plain containers of them."""
    info = graph._codegen.pytree_info  # type: ignore[attr-defined]
    for node, name in zip(graph.find_nodes(op="placeholder"), info.orig_args):
        node.target = name
    output = next(iter(reversed(graph.nodes)))
    with graph.inserting_before(output):
        output.args = (_rebuilt(graph, pytree.tree_unflatten(list(output.args[0]), info.out_spec)),)
    graph.set_codegen(fx.CodeGen())


def _rebuilt(graph: fx.Graph, value: Any) -> Any:
    """Outputs of a class of their own, such as those of transformers, are made by a call of it."""
    if dataclasses.is_dataclass(value) and isinstance(value, Mapping):
        return graph.call_function(type(value), (), {name: _rebuilt(graph, item) for name, item in value.items()})
    if type(value) in (tuple, list):
        return type(value)(_rebuilt(graph, item) for item in value)
    return {name: _rebuilt(graph, item) for name, item in value.items()} if type(value) is dict else value


def drop_dead(graph: fx.Graph) -> None:
    """Leave out what nobody reads; attention and dropout too, which fx keeps for the random numbers they may draw."""

    def acts(node: fx.Node) -> bool:
        schema = getattr(node.target, "_schema", None)
        return node.is_impure() if schema is None else schema.is_mutable

    graph.eliminate_dead_code(acts)


def drop_unread(module: fx.GraphModule) -> None:
    """Leave out parameters and buffers that neither the graph nor a module that it calls reads."""
    read = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    called = {str(node.target) for node in module.graph.nodes if node.op == "call_module"}
    for name, _ in (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)):
        owner, _, last = name.rpartition(".")
        if name not in read and owner not in called:
            delattr(module.get_submodule(owner), last)


def _share(module: fx.GraphModule, name: str, tensor: Tensor) -> None:
    """Let the graph read the model's own tensor of that name."""
    owner, _, last = name.rpartition(".")
    try:
        holder = module.get_submodule(owner)
    except AttributeError:
        return
    if last in holder._parameters or last in holder._buffers:
        setattr(holder, last, tensor)
