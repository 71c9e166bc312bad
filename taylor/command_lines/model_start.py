"""Starts a command from a model instead of a training file: the flag ``--model`` and the job that it means."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.errors import InputError
from taylor.command_lines.arguments import asked_margin, chosen_path

if TYPE_CHECKING:  # a command's --help and --version must not wait for what only its work needs
    from taylor.workflows.model_job import ModelJob

MODEL_HELP = "a registered model's name, or a Hugging Face config.json; needs --world_size"


def model_path(args: argparse.Namespace, output: Path) -> Path:
    """The configuration that ``--model`` names; of a registered model it is written below `output`.

    Raises
    ------
    InputError
        When no such model is registered, or nothing says how many ranks to plan it for.
    """
    from taylor.workflows.model_job import model_file

    path = model_file(args.model, output, chosen_path(args.register_path))
    if path != Path(args.model) and args.world_size is None:
        problem, cure = "is needed with a registered model", "name the ranks to plan for"
        raise InputError(problem, field="--world_size", cure=cure)
    return path


def _fixed(args: argparse.Namespace) -> dict[str, int]:
    """The degrees that are given, the stages among them where their devices are named.

    Raises
    ------
    InputError
        When the two name other numbers of stages.
    """
    fixed = dict(args.fix)
    stages = sum(count for _, count in getattr(args, "stage_devices", None) or ())
    if stages and fixed.setdefault("pp", stages) != stages:
        raise InputError(
            f"contradicts --stage_devices, which names {stages} stages", field="--fix", value=f"pp={fixed['pp']}",
            cure="give one of the two",
        )  # fmt: skip
    return fixed


def model_job(args: argparse.Namespace, path: Path) -> ModelJob:
    """The job of a model's configuration: its ranks, sequence and batch, the degrees that are given, and the device."""
    from taylor.workflows.model_job import ModelJob

    return ModelJob(
        path=path,
        world_size=args.world_size,
        seq_length=args.seq,
        gbs=args.gbs,
        fix=_fixed(args),
        device=args.device,
        register_path=chosen_path(args.register_path),
        margin=asked_margin(args),
    )
