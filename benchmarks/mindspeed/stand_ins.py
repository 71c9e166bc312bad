"""Stand-ins with which code of the programs runs on no device.

`load_paths` lets their packages be imported: modules of the device, and packages that are not installed, answer to any
name. `alone` loads one module of a checkout without those that it imports, so that its functions run by themselves.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import os
import sys
import types
import warnings
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

STAND_INS = frozenset(
    {
        *("torch_npu", "torchair", "apex", "transformer_engine", "transformer_engine_torch", "acl", "einops"),
        *("mindspore", "triton_ascend", "wandb", "tensorboard", "nvidia_resiliency_ext", "flash_attn", "transformers"),
        *("peft", "datasets", "sentencepiece", "regex", "six", "h5py", "tqdm", "safetensors", "mindio_ttp", "pandas"),
        *("accelerate", "jsonlines", "nltk", "pybind11", "zarr", "tensorstore", "multi_storage_client"),
    }
)
"""Packages that are stood in for, where they are not installed too."""
BARE = ("", ".core", ".core.models", ".core.transformer", ".tasks", ".tasks.high_availability", ".training")
"""Packages of MindSpeed-LLM whose ``__init__`` patches Megatron-LM for the device: they stay empty."""


class _StandIn(types.ModuleType):
    """A module that has whatever it is asked for."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        known = {"__version__": "3.0.0", "__file__": "/nowhere/__init__.py"}
        if name in known:
            return known[name]
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def stand_in(names: frozenset[str]) -> None:
    """Let packages of these names answer to any name."""
    sys.meta_path.append(_Finder(names))


def load_paths(megatron: Path, mindspeed: Path, llm: Path | None, installed: frozenset[str] = frozenset()) -> list[str]:
    """Let the programs' packages be imported from checkouts; return their paths.

    Parameters
    ----------
    installed : frozenset of str
        Packages that are not stood in for.
    """
    import torch
    import torch._dynamo
    import torch.utils.flop_counter

    warnings.simplefilter("ignore")
    setattr(torch, "npu", MagicMock())  # noqa: B010
    torch.cuda.get_device_capability = lambda *words, **named: (9, 0)
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    sys.meta_path.insert(0, _Finder(STAND_INS - installed))
    roots = [str(each.resolve()) for each in (megatron, mindspeed, llm) if each is not None]
    sys.path[:0] = roots
    if llm is not None:
        for name in BARE:
            module = types.ModuleType(f"mindspeed_llm{name}")
            module.__path__ = [str(llm.resolve() / f"mindspeed_llm{name}".replace(".", "/"))]
            sys.modules[module.__name__] = module
    return roots


class Settings:
    """A configuration in which everything that is not given is off."""

    def __init__(self, **given: Any):
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def torch_alone() -> Any:
    """A stand-in for torch whose modules, functions and tensors can be bases of classes."""
    torch = MagicMock()
    torch.nn.Module = torch.autograd.Function = torch.Tensor = object
    return torch


class _StandsIn(ast.NodeTransformer):
    """Imports from outside the standard library, each made an assignment of its stand-in."""

    def visit_Import(self, node: ast.Import) -> Any:
        return node if self._standard(node.names[0].name) else self._assignments(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        return node if not node.level and self._standard(node.module or "") else self._assignments(node)

    def _standard(self, name: str) -> bool:
        return name.split(".")[0] in sys.stdlib_module_names

    def _assignments(self, node: ast.Import | ast.ImportFrom) -> list[ast.stmt]:
        names = [each.asname or each.name.split(".")[0] for each in node.names]
        parts = [ast.parse(f"{name} = stand_in({name!r})").body[0] for name in names]
        return [ast.fix_missing_locations(ast.copy_location(part, node)) for part in parts]


def alone(checkout: Path, path: str, **given: Any) -> Any:
    """A module of a checkout without what it imports: stand-ins, but for the standard library and the names given.

    Importing a name that is given as an `ImportError` raises it.
    """

    def stand_in(name: str) -> Any:
        found = given[name] if name in given else MagicMock(name=name)
        if isinstance(found, ImportError):
            raise found
        return found

    module = types.ModuleType(f"alone {path}")
    vars(module).update(stand_in=stand_in)
    sys.modules[module.__name__] = module  # dataclasses ask for it
    exec(_compiled(checkout, path), vars(module))
    return module


@cache
def _compiled(checkout: Path, path: str) -> types.CodeType:
    tree = _StandsIn().visit(ast.parse((checkout / path).read_text(encoding="utf-8")))
    return compile(tree, str(checkout / path), "exec")
