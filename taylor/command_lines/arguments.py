"""Common parts of the command lines: flag spellings, the JSON of flags, and the common option groups."""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import taylor
from taylor.base.console import log
from taylor.base.errors import InputError, shortened
from taylor.base.files import MAX_TEXT_BYTES, read_text, text_of
from taylor.base.isolated import isolate_solver
from taylor.base.near import did_you_mean, near_names
from taylor.base.shipped import own_or_shipped
from taylor.cost_model.errors.margin import HALF, MemoryMargin
from taylor.parsers.tables.ratios import MAX_RATIO
from taylor.register.device import STACK_SIGN

if TYPE_CHECKING:  # a command's --help and --version must not wait for imports that only its work needs
    from taylor.cost_model.job.length import TrainingLength
    from taylor.workflows.running.run_folder import ResultsFolder
    from taylor.workflows.statement.options import DryRunOptions

MOST = 10**9
"""Largest count that a flag takes: a thousand times the ranks, the batch and the seconds of anybody's job."""

MOST_TOKENS = 1e18
"""Longest training that a flag takes: ten thousand times anybody's."""

_TOKEN_UNITS = {"M": 1e6, "B": 1e9, "T": 1e12}

_OLD_SPELLINGS = {"mindfomres_dir": "mindformers_dir", "dataset_dir": "dataset"}
"""Flags as the tool's older manual misspells them, accepted without a message."""

_ELSEWHERE = {
    "world_size": ("ranks", "num_ranks", "gpus", "num_gpus", "n_gpus", "ngpus", "npus", "num_npus", "devices", "nproc")
}
"""Words of other tools, by the flag of the same meaning that an error then names."""

STANDARD_INPUT = "-"
"""Name that ``--config`` reads standard input by."""

COMMANDS_OF_REQUESTS = {
    "solve": ("solve", "evaluate"),
    "pipeline_parallel.py": ("solve", "evaluate"),
    "search": ("search",),
    "parallel_tool.py": ("search",),
    "size": ("size",),
    "why-memory": ("why-memory",),
    "support": ("support",),
    "compare": ("compare",),
    "rank": ("rank",),
    "pipeline_tool.py": ("rank",),
    "lengths": ("lengths",),
    "rl": ("rl",),
    "layerwise": ("layerwise",),
    "check": ("check",),
    "models": ("models",),
    "devices": ("devices",),
    "rules": ("rules",),
    "history": ("history",),
}
"""Commands of the requests that each command takes by ``--config``."""

SUBCOMMAND_OF = {"evaluate": "solve"}


class Default(str):
    """Default of a path's flag: the same text as a user may type, but known to be nobody's choice."""


def command_text(program: str, arguments: Sequence[str]) -> str:
    """Command line as a person types it, for results."""
    return shortened(shlex.join([*program.split(), *map(str, arguments)]), 4000)


def path_or_none(text: str | None) -> Path | None:
    """Path that a flag names; None where it has no value."""
    return Path(text) if text else None


def chosen_path(text: str) -> Path | None:
    """Path that the user chose; None where the flag has its default."""
    return None if isinstance(text, Default) else Path(text)


DEFAULT_FOLDER = Default("./pipeline_output")


def add_output_folder(group: Any) -> None:
    """Add ``--output_path``: the folder of what a command writes unasked."""
    group.add_argument(
        "--output_path",
        metavar="DIR",
        default=DEFAULT_FOLDER,
        help="folder of what no other flag names: model files, finished solves, history (default: %(default)s)",
    )


def chosen_folder(args: argparse.Namespace) -> AbstractContextManager[ResultsFolder]:
    """Context with the folder of ``--output_path``; a temporary one where the default cannot be written.

    Raises
    ------
    InputError
        When a folder that the user named cannot be written.
    """
    from taylor.workflows.running.run_folder import results_folder

    return results_folder(Path(args.output_path), named=not isinstance(args.output_path, Default))


def chosen_or_there(text: str) -> Path | None:
    """Path that the user chose, or the default where it exists and is no empty folder; else None."""
    path = Path(text)
    if not isinstance(text, Default):
        return path
    return path if path.is_file() or (path.is_dir() and any(path.iterdir())) else None


def default_file(text: str) -> Path:
    """File that a flag names; at its default, below ``./config/``, the shipped one where there is none."""
    return own_or_shipped(text) if isinstance(text, Default) else Path(text)


SHELL_HELP = (
    "launch script of Megatron, MindSpeed, ms-swift or slime; with its arguments in quotes: 'run.sh dlc A3B 1 8'"
)


def add_start_options(group: argparse._ActionsContainer) -> None:
    """Add what a file gets from outside: the variables with which a script is started, the shape of a named model."""
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable with which the script is started; may be given several times",
    )
    group.add_argument(
        "--model_as",
        metavar="NAME|FILE",
        help="whose shape the model has that the file names, as a checkpoint of one's own: a registered model, or a "
        "config.json or its folder",
    )


class CommandParser(argparse.ArgumentParser):
    """Argument parser that takes ``--a_flag`` and ``--a-flag`` alike, and ``--config FILE.json``.

    Parameters
    ----------
    program : str
        Name by which the command was called: a script of the checkout, or `taylor` and a subcommand.
    example : str
        Arguments of a typical call.
    aliases : mapping of str to str
        Further names of flags: those of another tool's manual.
    """

    def __init__(self, program: str, purpose: str, example: str, aliases: Mapping[str, str] | None = None) -> None:
        super().__init__(
            prog=program,
            description="\n".join(textwrap.wrap(purpose, 78)),
            epilog=f"example:\n  {'python ' if program.endswith('.py') else ''}{program} {example}",
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=80),
        )
        self._typed: Sequence[str] = ()
        self._aliases = {**_OLD_SPELLINGS, **(aliases or {})}
        general = self.add_argument_group("general")
        general.add_argument(
            "--config", metavar="FILE", help="JSON of any of these flags, - for standard input; the command line wins"
        )
        general.add_argument("--version", action="version", version=f"taylor {taylor.__version__}")
        general.add_argument("--verbose", action="store_true", help="log what a developer would want to know")
        general.add_argument("--quiet", action="store_true", help="log warnings and errors only")
        general.add_argument(
            "--json", action="store_true", help="print one JSON document, an error too (taylor schema describes it)"
        )

    def error(self, message: str) -> NoReturn:
        """Refuse typed words in one line of readable length.

        Raises
        ------
        InputError
            Always.
        """
        if message.startswith("the following arguments are required"):
            # A missing flag may be there under another spelling: then that is the fault to report.
            typed = itertools.takewhile(lambda word: word != "--", self._typed)
            for word in typed:
                if word.startswith("--") and word.partition("=")[0] not in self._option_string_actions:
                    self._refuse(word)
        words, listed = shortened(message.removeprefix("argument "), 600), f"{self.prog} --help lists the flags"
        flag, colon, problem = words.partition(": ")
        named = {"field": flag} if colon and message.startswith("argument ") else {}
        if words.endswith("?"):
            raise InputError(f"{problem if named else words} {listed}", **named)
        raise InputError(problem if named else words, cure=listed, **named)

    def _refuse(self, word: str) -> NoReturn:
        flag = word.partition("=")[0]
        if not flag.startswith("-"):
            self.error(f"{shortened(repr(word))} belongs to no flag")
        raise InputError("is no flag", field=shortened(flag), cure=self._meant(flag))

    def _meant(self, flag: str) -> str:
        """Cure of an unknown flag, in one line."""
        # Without dashes: of `--vpp` and `-vpp` a user may have meant either.
        typed = flag.lstrip("-").replace("-", "_")
        near = near_names(typed, [each.lstrip("-") for each in self._option_string_actions], alike=0.6)
        near = [
            own for own, words in _ELSEWHERE.items() if typed in words and f"--{own}" in self._option_string_actions
        ] or near
        spelled = {each.lstrip("-"): each for each in self._option_string_actions}
        meant = f"did you mean {' or '.join(spelled[name] for name in near)}? " if near else ""
        return f"{meant}{self.prog} --help lists the flags"

    def _refuse_glued_words(self, words: Sequence[str]) -> None:
        """Refuse a mistyped flag that argparse would take for a flag of one letter and its value: ``-tml`` for -t.

        Raises
        ------
        InputError
            With the similar flag.
        """
        letters = {each for each in self._option_string_actions if len(each) == 2}
        for word in words:
            if word[:2] not in letters or len(word) < 3 or word in self._option_string_actions:
                continue
            name = word.partition("=")[0][1:]
            longer = [each.lstrip("-") for each in self._option_string_actions if len(each) > 2]
            if name.replace("_", "").isalpha() and near_names(name, longer, alike=0.75):
                self._refuse(word)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            cure = did_you_mean(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"{shortened(repr(value))} is not one of its values; {cure}")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the command line, with the flags of ``--config`` as defaults.

        The namespace's `given` has the flags that the user set, there or here: destination to spelling.

        Raises
        ------
        InputError
            When a word or a value is not understood, or the JSON cannot be read or has such a key or value.
        """
        words = [self._normal_spelling(word) for word in arguments]
        early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, prog=self.prog)
        early.add_argument("--config")
        path = early.parse_known_args([w for w in words if w not in ("-h", "--help")])[0].config
        if path is not None:
            words = self._words_from_json(Path(path)) + words
        self._refuse_glued_words(words)
        self._typed = words
        args, further = self.parse_known_args(words)
        if further:
            self._refuse(further[0])
        args.given = self._given(words, args)
        return args

    def _given(self, words: Sequence[str], args: argparse.Namespace) -> dict[str, str]:
        named = {word.partition("=")[0] for word in words}
        # A value that differs from the default is the user's too: -oFILE names no flag by itself.
        return {
            action.dest: (action.option_strings or [action.dest])[-1]
            for action in self._actions
            if named & {*action.option_strings}
            or getattr(args, action.dest, action.default) != self.get_default(action.dest)
        }

    def _normal_spelling(self, word: str) -> str:
        if not word.startswith("-") or word in ("-", "--"):
            return word
        flag, equals, value = word.partition("=")
        dashes = "--" if flag.startswith("--") else "-"
        name = flag[len(dashes) :].replace("-", "_")
        name = self._aliases.get(name, name)
        for candidate in (dashes + name, "--" + name, "-" + name):
            if candidate in self._option_string_actions:
                return candidate + equals + value
        return word

    def _words_from_json(self, path: Path) -> list[str]:
        words: list[str] = []
        for key, value in self._flags_in(path).items():
            flag = self._normal_spelling("--" + str(key).lstrip("-"))
            action = self._option_string_actions.get(flag)
            if key in ("config", "help", "json"):
                raise InputError("belongs on the command line", file=path, field=str(key), cure="leave it out there")
            if action is None and str(key) in self._positional:
                self._place(path, self._positional[str(key)], value)
            elif action is None:
                raise InputError("is no flag", file=path, field=str(key), cure=self._meant(flag))
            elif value is not None and action.nargs == "+":
                self._place(path, action, value)
            elif value is not None:
                words += self._flag_words(path, str(key), flag, value)
        return words

    def _flags_in(self, path: Path) -> dict[str, Any]:
        """Flags of a JSON file or of standard input (``-``); those of a request, once it is checked."""
        if str(path) != STANDARD_INPUT:
            text = read_text(path, anywhere=True)
        elif sys.stdin is None:
            raise InputError("is closed", file="standard input", cure="name a file")
        else:
            text = text_of(sys.stdin.buffer.read(MAX_TEXT_BYTES + 1), "standard input")
        try:
            flags = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"is not JSON: {error}", file=path) from None
        if not isinstance(flags, dict):
            raise InputError("must be a JSON object of flags", file=path, value=flags)
        if not flags.keys() & {"schema", "command"}:
            return flags
        from taylor.schemas.reading import read_request

        request = read_request(flags, path)
        takes = COMMANDS_OF_REQUESTS.get(self.prog.rpartition(" ")[2], ())
        if flags["command"] not in takes:
            cure = f"run taylor {SUBCOMMAND_OF.get(flags['command'], flags['command'])}"
            raise InputError("is of another command", file=path, field="command", value=flags["command"], cure=cure)
        return request.flags()

    @property
    def _positional(self) -> dict[str, argparse.Action]:
        return {action.dest: action for action in self._actions if not action.option_strings}

    def _place(self, path: Path, action: argparse.Action, value: Any) -> None:
        """Let a value of JSON be that of an argument of words without a flag each, where the command line has none."""
        several = action.nargs in ("*", "+")
        words = value if several and isinstance(value, list) else [value]
        for word in words:
            if not isinstance(word, str) or not word or word.startswith("-") or "\0" in word:
                raise InputError("must be text that begins with no dash", file=path, field=action.dest, value=word)
        if not action.option_strings:
            action.nargs = "*" if several else "?"
        action.required = False
        action.default = [self._get_value(action, word) for word in words] if several else value

    def _flag_words(self, path: Path, key: str, flag: str, value: Any) -> list[str]:
        """Words of a flag with a value of JSON."""
        action = self._option_string_actions[flag]
        if action.nargs == 0:
            if not isinstance(value, bool):
                raise InputError("must be true or false", file=path, field=key, value=value)
            return [flag] if value else []
        if isinstance(value, bool):
            return [f"{flag}={'y' if value else 'n'}"]
        if "\0" in str(value):
            raise InputError("has a NUL character", file=path, field=key, value=value)
        if isinstance(value, (str, int, float)):
            return [f"{flag}={value}"]
        if isinstance(value, list) and all(isinstance(item, (str, int, float)) for item in value):
            if isinstance(action, argparse._AppendAction):
                return [f"{flag}={item}" for item in value]
            return [f"{flag}={','.join(map(str, value))}"]
        raise InputError("must be a plain value", file=path, field=key, value=value)


def note_without_effect(args: argparse.Namespace, flags: Collection[str], where: str) -> None:
    """Log the flags that the user set and that change nothing here; the command continues.

    Parameters
    ----------
    args : argparse.Namespace
        From `CommandParser.parse`.
    flags : collection of str
        Destinations of the flags that have no effect.
    where : str
        Condition in which they have none: ``with -evaluate y``.
    """
    idle = _given(args, flags)
    if idle:
        log.warning("%s: %s %s", ", ".join(idle), _no_effect(idle), where)


def refuse_without_effect(args: argparse.Namespace, flags: Collection[str], where: str, cure: str = "") -> None:
    """Refuse flags that state another job than the command's without them.

    Parameters
    ----------
    args, flags, where
        As in `note_without_effect`.
    cure : str
        Cure other than to omit them.

    Raises
    ------
    InputError
        With every such flag.
    """
    idle = _given(args, flags)
    if idle:
        them = "it" if len(idle) == 1 else "them"
        cures = f"leave {them} out{cure and f', or {cure}'}"
        raise InputError(f"{_no_effect(idle)} {where}", field=", ".join(idle), cure=cures)


def _given(args: argparse.Namespace, flags: Collection[str]) -> list[str]:
    return [spelling for flag, spelling in args.given.items() if flag in flags]


def _no_effect(flags: Sequence[str]) -> str:
    return "has no effect" if len(flags) == 1 else "have no effect"


def refuse_unknown_solver(name: str) -> None:
    """Refuse a solver that cannot run here, before anything else is done.

    Raises
    ------
    InputError
        With similar ones, and the available ones.
    """
    from taylor.pipeline_solver.solving.solvers import SOLVERS, solver_named

    isolate_solver(name)
    entry = solver_named(name)
    if entry.name not in SOLVERS:
        entry.load()


def yes_no(text: str) -> bool:
    """Type of a y/n flag."""
    answer = text.strip().lower()
    if answer in ("y", "yes", "true", "1", "on"):
        return True
    if answer in ("n", "no", "false", "0", "off"):
        return False
    raise argparse.ArgumentTypeError(f"{shortened(repr(text))} is neither y nor n")


def positive_int(text: str) -> int:
    """Type of a count that must be at least 1."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shortened(repr(text))} is not an integer") from None
    if not 1 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"{value} is not between 1 and {MOST}")
    return value


def int_list(text: str) -> tuple[int, ...]:
    """Type of ``4`` and ``4,8``."""
    values = tuple(positive_int(part) for part in text.split(","))
    if len(values) > 1000:
        raise argparse.ArgumentTypeError("more than 1000 numbers are given")
    return values


def non_negative_int(text: str) -> int:
    """Type of a count that may be 0."""
    return 0 if text.strip() == "0" else positive_int(text)


def non_negative_float(text: str) -> float:
    """Type of a ratio or a time: finite and at least 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shortened(repr(text))} is not a number") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number >= 0")
    return value


def positive_float(text: str) -> float:
    """Type of a number that must be finite and above 0."""
    value = non_negative_float(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 is not above 0")
    return value


def time_ratio(text: str) -> float:
    """Type of a time over another: at least 0, and no more than any two parts of a model can differ by."""
    value = non_negative_float(text)
    if value > MAX_RATIO:
        raise argparse.ArgumentTypeError(f"{text!r} is above {MAX_RATIO:g}")
    return value


def relative_gap(text: str) -> float:
    """Type of a relative gap: ``0.01`` or ``1%``."""
    stripped = text.strip()
    value = non_negative_float(stripped.rstrip("%")) / (100.0 if stripped.endswith("%") else 1.0)
    if value >= 1:
        raise argparse.ArgumentTypeError(
            f"{shortened(repr(text))} is no gap: name a share below 1, such as 0.001 or 0.1%"
        )
    return value


def memory_margin(text: str) -> MemoryMargin:
    """Type of a margin of device memory: ``2048`` (MiB) or ``5%``."""
    try:
        return MemoryMargin.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{shortened(repr(text))} is no margin: name MiB (2048) or per cent of the limit (5%)"
        ) from None


def risk_share(text: str) -> float:
    """Type of a risk: ``5%`` or ``0.05``, from 0 to one half."""
    stripped = text.strip()
    value = non_negative_float(stripped.rstrip("%")) / (100.0 if stripped.endswith("%") else 1.0)
    if value > HALF:
        raise argparse.ArgumentTypeError(f"{shortened(repr(text))} is no risk: name a share from 0 to 50%, such as 5%")
    return value


def asked_margin(args: argparse.Namespace) -> MemoryMargin:
    """Margin of ``--margin`` and ``--risk``."""
    margin: MemoryMargin = args.margin
    return replace(margin, risk=args.risk)


def token_count(text: str) -> float:
    """Type of a training's length in tokens: ``1.5T``, ``300B``, ``2e12``."""
    stripped = text.strip()
    unit = _TOKEN_UNITS.get(stripped[-1:].upper(), 1.0)
    try:
        value = float(stripped if unit == 1.0 else stripped[:-1]) * unit
    except ValueError:
        value = 0.0
    if not 1 <= value <= MOST_TOKENS:
        raise argparse.ArgumentTypeError(
            f"{shortened(repr(text))} is no count of tokens: name it as 1.5T, 300B or 2e12"
        )
    return value


def stated_length(args: argparse.Namespace) -> TrainingLength:
    """The length of the training that the arguments state."""
    from taylor.cost_model.job.length import TrainingLength

    return TrainingLength(tokens=args.train_tokens, epoch_samples=args.samples)


def key_values(text: str) -> dict[str, int]:
    """Type of ``tp=8,pp=16``."""
    result: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{shortened(repr(part))} is not of the form name=number")
        result[key.strip()] = non_negative_int(value)
    return result


def names(text: str) -> tuple[str, ...]:
    """Type of a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def device_numbers(text: str) -> tuple[int, ...]:
    """Type of a list of device numbers."""
    try:
        numbers = tuple(int(part) for part in names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shortened(repr(text))} is not a list of device numbers") from None
    if any(number < 0 for number in numbers):
        raise argparse.ArgumentTypeError("device numbers start at 0")
    return numbers


def time_window(text: str) -> tuple[float, float]:
    """Type of ``A,B`` with A < B, ms."""
    first, comma, second = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(f"{shortened(repr(text))} is not of the form A,B")
    begin, end = non_negative_float(first), non_negative_float(second)
    if begin >= end:
        raise argparse.ArgumentTypeError(f"{text!r}: the window must begin before it ends")
    return begin, end


def step_range(text: str) -> tuple[int, int]:
    """Type of ``A,B`` with A <= B, numbers of steps."""
    first, comma, second = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(f"{shortened(repr(text))} is not of the form A,B")
    begin, end = non_negative_int(first), non_negative_int(second)
    if begin > end:
        raise argparse.ArgumentTypeError(f"{text!r}: the first step must not come after the last")
    return begin, end


def add_environment_options(parser: CommandParser) -> None:
    """Options of dry-run and register, the same in all three tools."""
    group: Any = parser.add_argument_group("dry-run and register")
    group.add_argument(
        "--dryrun_backend",
        choices=("auto", "estimate", "mindspore", "torch"),
        default="auto",
        help="where memory figures come from; auto: mindspore where it can run, else estimate",
    )
    group.add_argument(
        "--env_json",
        metavar="FILE",
        default=Default("./config/env_config.json"),
        help="environment of the dry-runs (default: %(default)s)",
    )
    group.add_argument(
        "--parallel_num", type=positive_int, default=2, metavar="N", help="dry-runs at once (default: %(default)s)"
    )
    group.add_argument(
        "--dryrun_timeout",
        type=positive_float,
        default=3600.0,
        metavar="SECONDS",
        help="limit of one dry-run (default: %(default)g)",
    )
    group.add_argument(
        "--dryrun_retries",
        type=non_negative_int,
        default=1,
        metavar="N",
        help="further attempts after a crash or a time-out (default: %(default)s)",
    )
    group.add_argument(
        "--small_dataset",
        metavar="FILE",
        default="./config/dataset/wiki4096.mindrecord",
        help="data set written into dry-run files (default: %(default)s)",
    )
    group.add_argument(
        "--register_path",
        metavar="DIR",
        default=Default("./register/"),
        help="folder of your own registrations and rules (default: %(default)s of the tool)",
    )
    group.add_argument(
        "--device",
        metavar="NAME",
        help="registered device, or its file (.yaml): memory, speed, links, cards a node (default: of Ascend "
        "files what their name, folder, comments or NPUs a node state, else ascend-910b; h100-80g of others)",
    )
    group.add_argument(
        "--stack",
        metavar="NAME",
        help="generation of the software that the device's speeds are of, as `taylor devices NAME` lists them "
        "(default: the newest)",
    )


def named_device(args: argparse.Namespace) -> str | None:
    """``--device`` with ``--stack`` behind it, as the registry takes both; None where neither is given."""
    if args.stack is None:
        return args.device  # type: ignore[no-any-return]
    return f"{args.device or ''}{STACK_SIGN}{args.stack}"


def add_planning_options(parser: CommandParser) -> None:
    """Add the flags for a plan's targets and measures, the same in all three tools."""
    group: Any = parser.add_argument_group("legality, proof, margin and length of training")
    add_legality_option(group)
    group.add_argument(
        "-gap",
        "--gap",
        type=relative_gap,
        default=1e-6,
        metavar="G",
        help="stop a solve once its plan is proven to this relative gap: 0.001 or 0.1%% (default: %(default)g)",
    )
    add_margin_options(group)
    group.add_argument(
        "--train_tokens",
        type=token_count,
        metavar="TOKENS",
        help="tokens of the whole training, as 1.5T or 300B: says how many days it takes",
    )
    group.add_argument(
        "--samples", type=positive_int, metavar="N", help="samples of the data set: says how many hours an epoch takes"
    )


def add_legality_option(group: Any) -> None:
    """Add ``--allow_illegal``."""
    group.add_argument(
        "--allow_illegal",
        type=names,
        default=(),
        metavar="RULE,...",
        help="legality rules of the framework that the job may break, by name (`taylor rules` lists them); the result "
        "reports them under `assumed`",
    )


def add_margin_options(group: Any) -> None:
    """Add ``--margin`` and ``--risk``: what `asked_margin` reads."""
    group.add_argument(
        "--margin",
        type=memory_margin,
        default=MemoryMargin(),
        metavar="MIB|P%",
        help="memory that every device keeps free below its limit: MiB or per cent (default: %(default)s)",
    )
    group.add_argument(
        "--risk",
        type=risk_share,
        metavar="P%",
        help="plan so that the real peak is over the limit in at most this share of cases, by the known error of the "
        "memory figures: 5%% or 0.05; 0 lets the predicted peak reach the limit (default: 5%% of "
        "estimated memory, 0 of measured memory)",
    )


def stage_mib(text: str) -> tuple[tuple[int, float], ...]:
    """Type of ``STAGE=MiB,STAGE=MiB``."""
    from taylor.workflows.statement.measured_run import stage_figures

    try:
        return stage_figures(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None


def stage_list(text: str) -> tuple[int, ...]:
    """Type of ``STAGE,STAGE``."""
    from taylor.workflows.statement.measured_run import stage_numbers

    try:
        return stage_numbers(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None


def add_measured_options(group: Any) -> None:
    """Add what a run of the file's plan showed of its memory, and limits by stage."""
    group.add_argument(
        "--measured_peaks",
        "--measured_peak",
        dest="measured_peak",
        type=stage_mib,
        default=(),
        metavar="STAGE=MiB,...",
        help="peaks that a run of the plan in the file had: the memory model is corrected by them, and they are kept",
    )
    group.add_argument(
        "--out_of_memory",
        type=stage_list,
        default=(),
        metavar="STAGE,...",
        help="stages that ran out of memory in a run of the plan in the file: they need at least their device's memory",
    )
    group.add_argument(
        "--peak_of",
        choices=("allocated", "card"),
        default="allocated",
        metavar="KIND",
        help="what --measured_peak is: allocated (torch's max_memory_allocated), or card (all that the job takes of a "
        "device, as nvidia-smi shows it) (default: %(default)s)",
    )
    group.add_argument(
        "--stage_limits",
        "--stage_limit",
        dest="stage_limit",
        type=stage_mib,
        default=(),
        metavar="STAGE=MiB,...",
        help="memory limits of single stages (default: that of their device)",
    )


def add_module_options(group: Any) -> None:
    """Add the choice of modules to recompute or to offload, the same in all three tools."""
    group.add_argument(
        "--recompute_modules",
        type=yes_no,
        default=False,
        metavar="y/n",
        help="choose recompute by module too, where the file can say it: core attention, norms, MLP, experts, … "
        "(default: n)",
    )
    group.add_argument(
        "--offload",
        type=yes_no,
        default=False,
        metavar="y/n",
        help="choose modules whose saved inputs lie on the host, where the file can say it (default: n)",
    )


def add_images_option(group: Any) -> None:
    """Add the images and the sound of a job with encoders; `inputs_of` reads both."""
    group.add_argument(
        "--images",
        default="",
        metavar="IMAGES[xPATCHES]",
        help="images a sample on average, and patches an image, of a job with a vision encoder: 2.5, 1.5x1024 "
        "(default: what its files state, else 1x1024)",
    )
    group.add_argument(
        "--audio_seconds",
        default="",
        metavar="[CLIPSx]SECONDS",
        help="seconds of a clip of sound, and clips a sample on average, of a job with an encoder of sound: 30, 2x12.5 "
        "(default: none, the encoder does not run)",
    )


def add_encoder_options(group: Any) -> None:
    """Add the images and sound of a job with encoders, and the encoders' place, the same in all three tools."""
    add_images_option(group)
    group.add_argument(
        "--encoder",
        choices=("nested", "spread", "beside", "bubbles", "best"),
        default="nested",
        help="where solve plans the vision encoder too, to compare with the first stage: on several of the first "
        "stages (spread); on ranks of its own, for every split of the ranks (beside); on every stage, in the "
        "pipeline's bubbles; in all places (best). Plans of the latter two are not written (default: nested, as the "
        "file has it)",
    )


def inputs_of(args: argparse.Namespace) -> str:
    """A sample's images and sound, as the options of `add_images_option` state them."""
    from taylor.workflows.statement.towers import inputs_text

    return inputs_text(getattr(args, "images", ""), getattr(args, "audio_seconds", ""))


def refuse_encoder_beside(args: argparse.Namespace, path: str | Path) -> None:
    """Refuse an encoder elsewhere than on the first stage where strategies are compared.

    Raises
    ------
    InputError
    """
    if args.encoder != "nested":
        raise InputError(
            "plans the encoder of one strategy, and here strategies are compared with it on the first stage",
            file=path, field="--encoder", value=args.encoder,
            cure=f"plan one file: taylor solve FILE --encoder {args.encoder}",
        )  # fmt: skip


def dryrun_options(args: argparse.Namespace, mindformers: str | None) -> DryRunOptions:
    """Settings of the dry-runs, from the flags of `add_environment_options`.

    Parameters
    ----------
    mindformers : str or None
        Path of ``run_mindformer.py`` or its folder, whose flag differs between the tools.
    """
    from taylor.workflows.statement.options import DryRunOptions

    return DryRunOptions(
        backend=args.dryrun_backend,
        mindformers=path_or_none(mindformers),
        env_json=default_file(args.env_json) if args.env_json else None,
        env_named=not isinstance(args.env_json, Default),
        parallel_num=args.parallel_num,
        small_dataset=path_or_none(args.small_dataset),
        register_path=chosen_path(args.register_path),
        timeout_s=args.dryrun_timeout,
        retries=args.dryrun_retries,
    )
