"""Command line: measures the hardware of a cluster, or the layers of a model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from taylor.base.console import run_command, start_logging
from taylor.base.errors import InputError, shortened
from taylor.base.near import did_you_mean

WHAT = {
    "hardware": ("profile_hardware", "collectives, transfers, overlap and kernels of a cluster, as tables"),
    "model": ("profile_model", "time and memory of a model's layers, as tables"),
}


def run(arguments: Sequence[str], program: str = "taylor profile") -> None:
    """Run what is named first, with the arguments behind it.

    Raises
    ------
    InputError
        When that is neither.
    """
    listed = "\n".join(f"  {name:<8}  {purpose}" for name, (_, purpose) in WHAT.items())
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: {program} {{hardware,model}} ...\n\n{listed}\n\n{program} hardware --help explains its flags")
        return
    name = arguments[0]
    if name not in WHAT:
        raise InputError("can't be profiled", field=shortened(name), cure=did_you_mean(name, WHAT))
    importlib.import_module(f"taylor.command_lines.{WHAT[name][0]}").run(arguments[1:], f"{program} {name}")


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]))
