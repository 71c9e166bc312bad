"""The configuration as a word of its own: ``taylor solve FILE`` for each of the flags that name one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taylor.base.errors import InputError, shortened
from taylor.command_lines.arguments import CommandParser, add_start_options
from taylor.parsers.named_model import model_as
from taylor.parsers.text.shell_start import parse_start, started

TRAINING_FILE = "MindFormers or FlagScale YAML, launch script, torchtitan TOML"
FILE_HELP = "the configuration, whatever its form; as one of the flags below"


def add_file(parser: CommandParser) -> None:
    """Add the word; `place_file` gives it to the flag of its form."""
    parser.add_argument("file", nargs="?", metavar="FILE", help=FILE_HELP)


def place_file(args: argparse.Namespace, ending: str = "") -> None:
    """Set the flag that the word stands for: ``hf`` for a model's ``config.json`` or its folder, else ``shell``, which
    alone takes arguments. `ending` closes the flags' names.

    Raises
    ------
    InputError
        When another flag names a configuration too, or the word is a model's name.
    """
    if args.file is None:
        return
    sources = [f"{name}{ending}" for name in ("yaml", "shell", "toml", "hf")] + ["model"]
    named = [args.given[name] for name in sources if name in args.given]
    if named:
        raise InputError(f"is named twice: by {named[0]} too", field="FILE", value=args.file, cure="name it once")
    path = Path(args.file)
    if not path.suffix and not path.exists() and path.name == args.file:
        cure = f"a registered model is named by --model {shortened(args.file)}"
        raise InputError("is no file", field="FILE", value=args.file, cure=cure)
    flag = "hf" if path.suffix == ".json" or path.is_dir() else "shell"
    setattr(args, f"{flag}{ending}", args.file)


def add_training_file(parser: CommandParser, what: str = TRAINING_FILE) -> None:
    """Add the word of a command that reads one training file, and the variables with which a script is started."""
    parser.add_argument("file", metavar="FILE", help=f"{what}; a script's arguments in quotes: 'run.sh A3B 8'")
    add_start_options(parser)


@contextmanager
def file_started(args: argparse.Namespace, word: str = "file") -> Iterator[None]:
    """Context in which the training file is read as it is started; `args` then has the file alone as its word.

    Parameters
    ----------
    word : str
        Name of the argument that holds the file, or a script with its arguments.

    Raises
    ------
    InputError
        When the word or a variable cannot be read, or no file names a model for which another stands.
    """
    file, start = parse_start(getattr(args, word), args.env)
    setattr(args, word, file)
    with started(start), model_as(args.model_as):
        yield


@contextmanager
def files_started(args: argparse.Namespace) -> Iterator[None]:
    """Context in which every training file is read with the command's variables, as `file_started` reads one."""
    with started(parse_start(None, args.env)[1]), model_as(args.model_as):
        yield
