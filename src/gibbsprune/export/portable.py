"""A compact network in one file that loads anywhere, without the classes that it came from and without unpickling.

The file is a safetensors container. Its tensors are the network's parameters, buffers and constants under their names;
its one entry of metadata is JSON: the format's name and version, a SHA-256 of everything else, and the network as plain
values (:mod:`gibbsprune.export.graph_values`).
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..attaching import check_plain
from ..errors import UserError
from ..files import ReadError, parse_json, write_atomic
from ..text import told
from .compaction import CompactReport
from .graph_values import Strange, as_values, from_values

FORMAT, VERSION = "gibbsprune-compact", 1


def save_compact(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a network that :func:`compact` made, as it is now, to ``path``, whole or not at all."""
    if not isinstance(model, fx.GraphModule):
        report = getattr(model, "report", None)
        whole = report.left.get("the whole model") if isinstance(report, CompactReport) else None
        why = f", which left this one as it was: {whole}" if whole else ""
        raise UserError(f"model is a {type(model).__name__}: allowed are networks made by compact{why}")
    check_plain(model, "saving")
    network = as_values(model)
    tensors = {name: operator.attrgetter(name)(model).detach().cpu() for _, _, name in network["tensors"]}
    record = {"version": VERSION, "sha256": _digest(network, tensors), "network": network}
    flat = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    write_atomic(path, _safetensors().save(flat, metadata={FORMAT: json.dumps(record)}))


def load_compact(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> nn.Module:
    """The network of a file that :func:`save_compact` wrote, in eval mode on ``device``.

    It is an ordinary module, which trains, is saved and is exported. Outputs of a class of their own, such as those of
    transformers, are mappings with the same names. A file that is damaged, or that names anything else than the
    known operators and layers, is refused.
    """
    name, device = os.fspath(path), torch.device(device)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ReadError(f"cannot read {name}: {error.strerror or error}") from error
    try:
        length = int.from_bytes(content[:8], "little")
        if not 0 < length <= len(content) - 8:
            raise ValueError("its header is not whole")
        metadata = parse_json(content[8 : 8 + length], f"the header of {name}").get("__metadata__", {})
        tensors = _safetensors().load(content)
        text = metadata.get(FORMAT) if isinstance(metadata, dict) else None
    except UserError:
        raise
    except Exception as error:  # safetensors' own exception and the many of broken JSON
        raise ReadError(f"{name} is no compact network, or is damaged or incomplete") from error
    if not isinstance(text, str):
        raise ReadError(f"{name} is a safetensors file, but no compact network")
    record = parse_json(text, name)
    if (version := record.get("version")) != VERSION:
        raise ReadError(f"{name} is of version {version!r} of the format; this release reads {VERSION}")
    network = record.get("network")
    if not isinstance(network, dict) or record.get("sha256") != _digest(network, tensors):
        raise ReadError(f"{name} is damaged: its checksum does not match")
    try:
        return from_values(network, tensors, device)
    except Strange as error:
        raise ReadError(f"{name} is no network that can be loaded: {error}") from error
    except Exception as error:  # whatever values of wrong kinds do to constructors
        raise ReadError(f"{name} is no network that can be loaded: {told(error)}") from error


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise UserError("files of compact networks need safetensors: pip install 'gibbsprune[export]'") from error
    return safetensors.torch


def _digest(network: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(network, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()
