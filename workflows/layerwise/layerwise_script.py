"""A launch script made to train a strategy file's plan."""

from __future__ import annotations

import os
import re
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import write_atomic
from taylor.parsers.galvatron.strategy_file import PADDLE, read_strategy
from taylor.parsers.paddlenlp.script import PaddleScript
from taylor.parsers.paddlenlp.write import for_layerwise


def profiled_steps(text: str) -> tuple[int, int]:
    """First and last step of ``A,B``.

    Raises
    ------
    InputError
        When the text is no such pair.
    """
    found = re.fullmatch(r"(\d{1,9}),(\d{1,9})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise InputError(
            "must be two steps, the first one first", field="--profile_steps", value=text, cure="write 10,12"
        )
    return int(found[1]), int(found[2])


def layerwise_script(strategy: Path, script: Path, target: Path, steps: tuple[int, int] | None = None) -> str:
    """Text of a script that trains a strategy file's plan.

    Parameters
    ----------
    strategy : Path
        Strategy file, in Paddle's form.
    script : Path
        A script that trains the same model.
    target : Path
        Path of the result. The strategy file is named from where the script is started (`PaddleScript.start_folder`).
    steps : tuple of int, optional
        First and last step whose pipeline jobs the workers log.

    Raises
    ------
    InputError
        When one of the files is wrong, or the script cannot state the plan.
    """
    found = read_strategy(strategy)
    if found.form != PADDLE:
        raise InputError(
            "is in Hetu's form, and the script's runtime reads Paddle's",
            file=strategy,
            cure="write it with --to paddle -o fine_grained_config.json first",
        )
    source = PaddleScript.read(script)
    named = os.path.relpath(strategy.resolve(), source.start_folder(otherwise=target.resolve().parent))
    return for_layerwise(source, found.plan, named, steps)


def write_layerwise_script(strategy: Path, script: Path, target: Path, steps: tuple[int, int] | None = None) -> Path:
    """Write such a script, atomically; see `layerwise_script`."""
    return write_atomic(target, layerwise_script(strategy, script, target, steps))
