"""The command of a shell script that starts one of verl's programs: its Hydra options, and edits of them.

Hydra's grammar of overrides: facebookresearch/hydra 1.3 website/docs/advanced/override_grammar/basic.md: ``key=value``,
``+key=value`` adds a key, ``++key=value`` adds or changes one, ``~key`` takes one out, ``group=choice`` picks a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.nested_keys import leaves
from taylor.parsers.policy.options import NOTHING, Options, option, unquoted_word
from taylor.parsers.text.flags import Flag, Start
from taylor.parsers.text.shell_source import Command, ShellScript
from taylor.parsers.text.shell_words import Word
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.verl.programs import (
    CONFIGS,
    CRITIC,
    EASY_R1,
    FORMER_CRITIC_SHARDING,
    FSDP,
    MEGATRON,
    MIRRORED,
    PPO,
    Program,
    program_of,
)

_OVERRIDE = re.compile(r"(\+{0,2})([A-Za-z_][\w.@/]*)=")
_USE = re.compile(r"\$(?:\w+|\{[^{}]*\}|\(\((?:[^()]|\([^()]*\))*\)\))")
_SAFE = re.compile(r"[\w.,:/@%+\-\[\]|*()]+")
_TORCHRUN = {"nproc_per_node": "trainer.n_gpus_per_node", "nnodes": "trainer.nnodes"}
_MOST_FOLDERS = 8


@dataclass(frozen=True)
class VerlCommand:
    """One start of a program.

    Parameters
    ----------
    script : ShellScript
    command : Command
    program : Program
    options : Options
        What the command states, over a configuration of the user's, over verl's own.
    stated : mapping of str to Word
        The whole word of each option that the command states, by its key.
    notes : tuple of str
    """

    script: ShellScript
    command: Command
    program: Program
    options: Options
    stated: Mapping[str, Word]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, script: ShellScript) -> VerlCommand:
        """The start in a script.

        Raises
        ------
        InputError
            When no command starts a training, or its configuration is not found.
        """
        command, program = _command(script)
        stated: dict[str, Word] = {}
        values: dict[str, Flag] = {}
        for word in command.words:
            match = _OVERRIDE.match(word.text)
            if match is not None:
                stated[match[2]] = word
                values[match[2]] = option(match[2], unquoted_word(word.part(match.end())))
        base, notes = _of_fork(script, values) if program is EASY_R1 else _configured(script, command.words)
        given = {**_launched(command.words, program, values), **values}
        flags = [*(each for name, each in base.items() if name not in given), *given.values()]
        kept = [each for each in flags if each.values[0].text.strip().lower() not in NOTHING]
        start = Start((), (), script.text, other_tool=True, to_state=script.to_state)
        options = Options(script.file, kept, place="{}".format, start=start)
        gone = {each.name for each in flags} - {each.name for each in kept}
        missing = {name: value for name, value in program.defaults.items() if name not in gone}
        return cls(script, command, program, options.under(missing), stated, tuple(notes))

    def of_critic(self) -> VerlCommand:
        """The same start, of the critic that it trains beside the policy."""
        own, program = self.options, CRITIC
        if any(name.startswith(FORMER_CRITIC_SHARDING) for name in own.by_name):
            former = {
                name.replace(CRITIC.sharding, FORMER_CRITIC_SHARDING): value for name, value in CRITIC.defaults.items()
            }
            ulysses = (CRITIC.ulysses[0], f"{FORMER_CRITIC_SHARDING}ulysses_sequence_parallel_size")
            program = replace(CRITIC, sharding=FORMER_CRITIC_SHARDING, ulysses=ulysses, defaults=former)
        mirrored = {name: str(own.text(of)) for name, of in MIRRORED.items() if own.has(of)}
        # Both roles follow `model_engine`; the policy's kind of FSDP is its own choice.
        if str(own.text(PPO.strategy, default=FSDP)).lower() == MEGATRON:
            mirrored[program.strategy] = MEGATRON
        return replace(self, program=program, options=own.under({**program.defaults, **mirrored}))

    def edited(self, wanted: Mapping[str, object]) -> ShellScript:
        """The script with some options set in the command.

        Raises
        ------
        InputError
            When a value cannot be set without changing another.
        """
        script = self.script
        for key, value in wanted.items():
            start = VerlCommand.of(script)
            text = start._spliced(key, _text(value))
            script = ShellScript(text, script.file)
        after = VerlCommand.of(script)
        for name, word in self.stated.items():
            now = after.stated.get(name)
            if name not in wanted and (now is None or now.text != word.text):
                cure = "give each option a value of its own"
                raise InputError("cannot be changed alone", file=script.file, field=name, value=word.text, cure=cure)
        return script

    def _spliced(self, key: str, text: str) -> str:
        """The script's text with one option set."""
        source, word = self.script.text, self.stated.get(key)
        if word is None:
            at, inserted = self._insertion(f"++{key}={text}")
            return source[:at] + inserted + source[at:]
        match = _OVERRIDE.match(word.text)
        assert match is not None
        value = word.part(match.end())
        place = value.span()
        if place is None or self._shared(key, value):
            place = self._use(word, match.end())
        if place is None:
            cure = "write the number behind its key"
            raise InputError("is put together from several places", file=self.script.file, field=key,
                             value=value.text, cure=cure)  # fmt: skip
        return source[: place[0]] + self._quoted(place[0], text) + source[place[1] :]

    def _quoted(self, at: int, text: str) -> str:
        return (
            text if _SAFE.fullmatch(text) and not set("[]()*|") & set(text) or self.script.quote_at(at) else f"'{text}'"
        )

    def _shared(self, key: str, value: Word) -> bool:
        """Return whether the value's characters reach another option too."""
        if value.via() is None:
            return False
        places = {char.at for char in value.chars}
        others = [word for name, word in self.stated.items() if name != key]
        return any(places & {char.at for char in word.chars if char.at is not None} for word in others)

    def _use(self, word: Word, length: int) -> tuple[int, int] | None:
        """The one expansion behind the sign of equality that brings the whole value."""
        own = Word(word.chars[:length]).span()
        if own is None:
            return None
        text = self.script.text
        start = own[1] + (text[own[1] : own[1] + 1] == '"')
        match = _USE.match(text, start)
        if match is None or not re.match(r"[\"\s\\]|\Z", text[match.end() : match.end() + 1] or " "):
            return None
        return match.span()

    def _insertion(self, written: str) -> tuple[int, str]:
        """Place and text of a new option: a line of its own before the first one that stands in the script."""
        text = self.script.text
        if not _SAFE.fullmatch(written.partition("=")[2]) or set("[]()*|") & set(written):
            key, _, value = written.partition("=")
            written = f"{key}='{value}'"
        prefix = f"{written.lstrip('+').rpartition('=')[0].rpartition('.')[0]}."
        near = [name for name in self.stated if name.startswith(prefix)]
        for name in (*near, self.program.samples, *self.program.model, *self.stated):
            span = self.stated[name].span() if name in self.stated else None
            head = None if name not in self.stated else Word(self.stated[name].chars[: len(name)]).span()
            at = (span or head or (None,))[0]
            if at is None:
                continue
            start = text.rfind("\n", 0, at) + 1
            indent = text[start:at]
            end = text.find("\n", at)
            line = text[start : len(text) if end < 0 else end].rstrip()
            if indent.strip():
                return at, f"{written} "
            before = text[:start].rstrip("\r\n").rpartition("\n")[2].rstrip()
            continued = " \\" if line.endswith("\\") or before.endswith("\\") else ""
            return at, f"{written}{continued}\n{indent}"
        raise InputError("finds no place for a new option", file=self.script.file, field=written.partition("=")[0],
                         cure="write the options behind the program")  # fmt: skip


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _command(script: ShellScript) -> tuple[Command, Program]:
    """The command that starts a training, the one with the most options where several do."""
    found: list[tuple[int, Command, Program]] = []
    for command in script.commands:
        texts = [word.text for word in command.words]
        if texts and texts[0] not in ("echo", "printf") and (program := program_of(texts)) is not None:
            found.append((sum(_OVERRIDE.match(text) is not None for text in texts), command, program))
    if not found:
        cure = "give the script that starts verl.trainer.main_ppo, sft_trainer, fsdp_sft_trainer or EasyR1's main"
        raise InputError("starts no training: no command starts a trainer of verl", file=script.file, cure=cure)
    _, command, program = max(found, key=lambda each: each[0])
    return command, program


def _launched(words: Sequence[Word], program: Program, values: Mapping[str, Flag]) -> dict[str, Flag]:
    """The ranks that torchrun starts, where it starts the program."""
    if program.rolls_out:
        return {}
    found: dict[str, Flag] = {}
    for at, word in enumerate(words):
        match = re.match(r"--(nproc[_-]per[_-]node|nnodes)(=?)", word.text)
        if match is None:
            continue
        value = word.part(match.end()) if match[2] else next(iter(words[at + 1 : at + 2]), None)
        key = _TORCHRUN[match[1].replace("-", "_")]
        if value is not None and key not in values:
            found[key] = option(key, value)
    return found


def _configured(script: ShellScript, words: Sequence[Word]) -> tuple[dict[str, Flag], list[str]]:
    """Options of the configuration that the command names: the trainer's kind of verl's own, or a file's content."""
    flags = {"path": "", "name": ""}
    for at, word in enumerate(words):
        match = re.match(r"--config[-_](path|name)(?:=|$)", word.text)
        if match is not None:
            behind = word.text[match.end() :] or (words[at + 1].text if at + 1 < len(words) else "")
            flags[match[1]] = behind.strip("'\"")
        elif word.text == "-cn" and at + 1 < len(words):
            flags["name"] = words[at + 1].text
    group = next((word.text.partition("=")[2] for word in words if re.match(r"(?:model_)?engine=", word.text)), "")
    base: dict[str, Flag] = {}
    if group:
        base["engine.strategy"] = option("engine.strategy", group)
        base[PPO.strategy] = option(PPO.strategy, FSDP if group == "dp" else group)
    name = flags["name"].removesuffix(".yaml")
    if not name or name in CONFIGS:
        return _kind(CONFIGS.get(name)) | base, []
    path = _file(script.file, flags["path"], name)
    if path is None:
        if re.search(r"(?:^|_)(?:ppo|trainer)\w*$", name) and "$" not in name:
            kind = "ppo_megatron_trainer" if "megatron" in name else "ppo_trainer"
            note = f"--config-name {name} is not found: the defaults are those of {kind} (assumed)"
            return base | _kind(CONFIGS[kind]), [note]
        cure = "give the script inside its checkout, beside the folder of that configuration"
        raise InputError(f"takes its options from {name}.yaml, which is not found", file=script.file,
                         field="--config-name", value=name, cure=cure)  # fmt: skip
    source = YamlSource.read(path)
    parents = source.data.get("defaults")
    named = [str(each) for each in parents if isinstance(each, str)] if isinstance(parents, list) else []
    base |= _kind(next((CONFIGS[each] for each in named if each in CONFIGS), None))
    own = {key: part for key, part in source.data.items() if key not in ("defaults", "hydra")}
    base |= {key: option(key, text) for key, text in leaves(own) if "${" not in text}
    return base, [f"options of {path.name} stand behind those of the command"]


def _of_fork(script: ShellScript, values: dict[str, Flag]) -> tuple[dict[str, Flag], list[str]]:
    """Options of the YAML that EasyR1 takes by ``config=`` (hiyouga/EasyR1 b44b311b verl/trainer/main.py)."""
    stated = values.pop("config", None)
    if stated is None:
        return {}, []
    written = stated.values[0].text
    folder, _, name = written.rpartition("/")
    path = _file(script.file, folder, name.removesuffix(".yaml"))
    if path is None:
        cure = "give the script inside its checkout"
        problem = "names a YAML that is not found"
        raise InputError(problem, file=script.file, field="config", value=written, cure=cure)
    found = {key: option(key, text) for key, text in leaves(YamlSource.read(path).data) if "${" not in text}
    return found, [f"options of {path.name} stand behind those of the command"]


def _kind(kind: str | None) -> dict[str, Flag]:
    return {} if kind is None else {PPO.strategy: option(PPO.strategy, kind)}


def _file(script: Path, folder: str, name: str) -> Path | None:
    """A configuration by its folder, which may begin with what only the shell knows, seen from the script's folders."""
    if not re.fullmatch(r"[\w.\-]{1,120}", name):
        return None
    known = re.sub(r"^.*[$`)}][^/]*", "", folder).strip("/")
    if ".." in known.split("/"):
        return None
    above = [script.absolute().parent, *list(script.absolute().parents)[1:_MOST_FOLDERS]]
    for start in above:
        for part in dict.fromkeys((known, "config", "")):
            path = start / part / f"{name}.yaml"
            if path.is_file():
                return path
    return None
