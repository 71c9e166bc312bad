"""Check that MindSpeed or MindSpeed-LLM itself starts a launch: its features and Megatron's parser, run on no device.

Run are the argument parser, every feature's ``pre_validate_args``, Megatron-LM's ``validate_args``, and every feature's
``post_validate_args`` and ``validate_args``, in the order of the program. Stand-ins: modules of the device and of
packages that are not installed, which answer to any name. Nothing is patched into Megatron-LM.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mindspeed.stand_ins import load_paths

STAND_IN_FLAGS = ("--lr", "1e-5", "--train-iters", "10")


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

    def __init__(
        self, megatron: Path, mindspeed: Path, llm: Path | None = None, installed: frozenset[str] = frozenset()
    ) -> None:
        self._roots = load_paths(megatron, mindspeed, llm, installed)
        words, sys.argv = sys.argv, ["program"]
        features = importlib.import_module("mindspeed.features_manager")
        self._manager = importlib.import_module("mindspeed.features_manager.features_manager").MindSpeedFeaturesManager
        self._arguments = importlib.import_module("megatron.training.arguments")
        vars(self._arguments).update(_print_args=lambda *given, **named: None, get_device_arch_version=lambda: 9)
        self._add_dummies = None
        if llm is not None:
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
        return self._started(words, world)[0]

    def arguments(self, words: Sequence[str], world: int) -> Any:
        """The arguments with which the program starts."""
        refusal, args = self._started(words, world)
        if refusal is not None:
            raise ValueError(f"{refusal.stage} {refusal.place}: {refusal.message}")
        return args

    def _started(self, words: Sequence[str], world: int) -> tuple[Refusal | None, Any]:
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
                return Refusal(stage, out.getvalue().strip().splitlines()[-1], ""), None
            except Exception as error:
                return Refusal(stage, str(error).strip(), self._place(error)), None
        return None, args

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
