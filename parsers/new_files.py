"""The frameworks for which a file is made from a model alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from taylor.parsers.megatron.new_file import megatron_script, mindspeed_script
from taylor.parsers.mindformers.new_file import mindformers_yaml
from taylor.parsers.new_file import NewJob
from taylor.parsers.torchtitan.new_file import torchtitan_toml


@dataclass(frozen=True)
class NewFile:
    """How one framework's file is made.

    Parameters
    ----------
    name, title : str
        What ``--framework`` and messages call the framework.
    suffix : str
        Of its files.
    text : callable
        Makes the file of a job; raises `InputError` where it knows no such model.
    """

    name: str
    title: str
    suffix: str
    text: Callable[[NewJob], str]


NEW_FILES: dict[str, NewFile] = {
    one.name: one
    for one in (
        NewFile("megatron", "Megatron-LM", ".sh", megatron_script),
        NewFile("mindspeed", "MindSpeed-LLM", ".sh", mindspeed_script),
        NewFile("mindformers", "MindFormers", ".yaml", mindformers_yaml),
        NewFile("torchtitan", "torchtitan", ".toml", torchtitan_toml),
    )
}
