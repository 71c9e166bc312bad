"""Starts a command from a model instead of a training file: the flag ``--model`` and its job."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.errors import InputError
from taylor.base.files import form_of
from taylor.command_lines.arguments import asked_margin, chosen_path, inputs_of, key_values, named_device, names
from taylor.register.frameworks import WRITTEN_FROM_MODELS

FRAMEWORK_NAMES = (*WRITTEN_FROM_MODELS, "json")
"""`workflows.searching.model_job.FRAMEWORKS`, which a command's --help must not wait for."""

if TYPE_CHECKING:  # a command's --help and --version must not wait for imports that only its work needs
    from taylor.workflows.searching.model_job import ModelJob

MODEL_HELP = "a registered model's name, or a Hugging Face config.json or its folder; needs --world_size"


def add_framework_option(group: argparse._ArgumentGroup) -> None:
    """``--framework``: the framework in whose file a model's job is written."""
    group.add_argument(
        "--framework",
        choices=FRAMEWORK_NAMES,
        metavar="NAME",
        help=f"of a model: {', '.join(FRAMEWORK_NAMES)} (default: by the suffix of -o, else megatron, on Ascend "
        "mindspeed; json starts nothing)",
    )


OF_SOFTWARE = {"software", "override"}
"""Flags of `add_software_options`, by where their values stand."""


def add_software_options(group: argparse._ArgumentGroup) -> None:
    """``--with`` and ``--override``: features of the software, and sizes of a registered model stated otherwise."""
    group.add_argument(
        "--software",
        "--with",
        dest="software",
        type=names,
        default=(),
        metavar="NAME,...",
        help="of a model: features of the software, such as tp-comm-overlap, fp8=mxfp8, dispatcher=deepep or "
        "cuda-graphs; the written file has their flags",
    )
    group.add_argument(
        "--override",
        type=key_values,
        default={},
        metavar="num_layers=14,...",
        help="of a registered model: sizes stated otherwise",
    )


def software_of(args: argparse.Namespace) -> dict[str, str]:
    """Features that ``--with`` names.

    Raises
    ------
    InputError
        With a name or a value that is none.
    """
    from taylor.parsers.software import features_of

    return features_of(args.software)


def framework_of(args: argparse.Namespace) -> str | None:
    """Named framework, else the one whose files end like the output; None where neither states it.

    Raises
    ------
    InputError
        When the output is no file of the framework.
    """
    from taylor.parsers.new_files import NEW_FILES
    from taylor.workflows.searching.model_job import NEUTRAL

    named: str | None = args.framework
    output = getattr(args, "o", None)
    if not output:
        return named
    suffixes = {name: one.suffix for name, one in NEW_FILES.items()} | {NEUTRAL: ".json"}
    suffix = form_of(Path(output)).replace(".yml", ".yaml")
    if named is None:
        possible = [name for name, one in suffixes.items() if one == suffix]
        if not possible:
            known = ", ".join(f"{one} ({name})" for name, one in suffixes.items())
            raise InputError("is no suffix of a framework's file", field="-o", value=output, cure=f"use {known}")
        return possible[0] if len(possible) == 1 else None
    if suffix != suffixes[named]:
        others = [name for name, one in suffixes.items() if one == suffix]
        other = f", or name --framework {' or '.join(others)}" if others else ""
        problem, cure = f"is no file of {named}", f"end it in {suffixes[named]}{other}"
        raise InputError(problem, field="-o", value=output, cure=cure)
    return named


def model_path(args: argparse.Namespace, output: Path) -> Path:
    """Configuration that ``--model`` names; of a registered model it is written below `output`.

    Raises
    ------
    InputError
        When no such model is registered, or the number of ranks is not stated.
    """
    from taylor.workflows.searching.model_job import model_file

    path = model_file(args.model, output, chosen_path(args.register_path), args.override)
    if Path(args.model) != path and not Path(args.model).is_dir() and args.world_size is None:
        problem, cure = "is needed with a registered model", "name the ranks to plan for"
        raise InputError(problem, field="--world_size", cure=cure)
    return path


def _fixed(args: argparse.Namespace) -> dict[str, int]:
    """Given degrees, the stages among them where their devices are named.

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
    """Job of a model's configuration: its ranks, sequence and batch, the given degrees, and the device."""
    from taylor.workflows.searching.model_job import ModelJob

    return ModelJob(
        path=path,
        world_size=args.world_size,
        seq_length=args.seq,
        gbs=args.gbs,
        fix=_fixed(args),
        device=named_device(args),
        register_path=chosen_path(args.register_path),
        margin=asked_margin(args),
        framework=framework_of(args),
        allow_illegal=args.allow_illegal,
        software=software_of(args),
        images=inputs_of(args),
    )
