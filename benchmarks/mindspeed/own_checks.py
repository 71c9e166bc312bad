"""Check that MindSpeed or MindSpeed-LLM itself starts a launch: its features and Megatron's parser, run on no device.

Run are the argument parser, every feature's ``pre_validate_args``, Megatron-LM's ``validate_args``, and every feature's
``post_validate_args`` and ``validate_args``, in the order of the program. Stand-ins: modules of the device and of
packages that are not installed, which answer to any name. Nothing is patched into Megatron-LM.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import os
import sys
import traceback
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
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
STAND_IN_FLAGS = ("--lr", "1e-5", "--train-iters", "10")


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
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in STAND_INS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


@dataclass(frozen=True)
class Refusal:
    """Place and message of a program's refusal of a launch.

    Parameters
    ----------
    stage : str
        ``parser``, ``pre``, ``megatron``, ``post`` or ``validate``.
    message : str
    place : str
        File and line below the checkout.
    """

    stage: str
    message: str
    place: str


class Program:
    """One of the two programs, loaded from checkouts; a process loads one."""

    def __init__(self, megatron: Path, mindspeed: Path, llm: Path | None = None):
        import torch
        import torch._dynamo
        import torch.utils.flop_counter

        warnings.simplefilter("ignore")
        setattr(torch, "npu", MagicMock())  # noqa: B010
        torch.cuda.get_device_capability = lambda *words, **named: (9, 0)
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        sys.meta_path.insert(0, _Finder())
        self._roots = [str(each.resolve()) for each in (megatron, mindspeed, llm) if each is not None]
        sys.path[:0] = self._roots
        words, sys.argv = sys.argv, ["program"]
        features = importlib.import_module("mindspeed.features_manager")
        self._manager = importlib.import_module("mindspeed.features_manager.features_manager").MindSpeedFeaturesManager
        self._arguments = importlib.import_module("megatron.training.arguments")
        vars(self._arguments).update(_print_args=lambda *given, **named: None, get_device_arch_version=lambda: 9)
        self._add_dummies = None
        if llm is not None:
            for name in BARE:
                module = types.ModuleType(f"mindspeed_llm{name}")
                module.__path__ = [str(llm.resolve() / f"mindspeed_llm{name}".replace(".", "/"))]
                sys.modules[module.__name__] = module
            features = importlib.import_module("mindspeed_llm.features_manager")
            self._add_dummies = importlib.import_module("mindspeed_llm.training.arguments")._add_dummy_args_v2
        self._manager.set_features_list(features.create_features_list())
        self.parser = self._parser()
        sys.argv = words

    def _parser(self) -> Any:
        import argparse

        parser = self._arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
        self._manager.register_features_args(parser)
        return parser

    def refusal(self, words: Sequence[str], world: int) -> Refusal | None:
        """Reason why the program does not start with these flags on `ranks` ranks; None where it does."""
        out, stage = io.StringIO(), "parser"
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                args = self.parser.parse_args([*words, *STAND_IN_FLAGS])
                args.rank, args.world_size = 0, world
                stage = "pre"
                self._manager.pre_validate_features_args(args)
                stage = "megatron"
                args = self._arguments.validate_args(args, {})
                stage = "post"
                self._manager.post_validate_features_args(args=args)
                if self._add_dummies is not None:
                    self._add_dummies(args)
                stage = "validate"
                self._manager.validate_features_args(args=args)
            except SystemExit:
                return Refusal(stage, out.getvalue().strip().splitlines()[-1], "")
            except Exception as error:
                return Refusal(stage, str(error).strip(), self._place(error))
        return None

    def _place(self, error: Exception) -> str:
        """The last line of a feature, or of Megatron-LM's arguments, on the way to an error."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [
            frame
            for frame in frames
            if "features_manager/" in frame.filename and Path(frame.filename).name != "feature.py"
        ]
        frame = (own or frames)[-1]
        name = frame.filename
        for root in self._roots:
            name = name.removeprefix(f"{root}/")
        return f"{name}:{frame.lineno}"
