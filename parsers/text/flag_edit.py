"""Flags of a launch script set, added and removed by splicing, in the script's style."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.text.flags import Flag, Flags
from taylor.parsers.text.script_flags import FlagForm, flags_of
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_words import Word

Splice = tuple[int, int, str]
Setting = str | bool | tuple[str, ...]
"""A flag's value as text, or its values; True for a flag without one, False to remove it."""
_USE = re.compile(r"[ \t\\\r\n\"]*(\$\w+|\$\{\w+\})(?=[\s\"\\;|)]|\Z)")
_PLAIN = re.compile(r"[\w.,:/@%+=\-]+")


def edit_flags(
    script: ShellScript,
    wanted: Mapping[str, Setting],
    form: FlagForm,
    *,
    near: tuple[str, ...] = (),
    computed: tuple[str, ...] = (),
) -> ShellScript:
    """Set flags of the launch.

    A value is changed where it is written: in place, or at the variable that holds it, when nothing
    else of the launch uses that variable. A new flag goes on a line of its own before one of `near`,
    with the line ends that its group uses; a flag removed takes its line along.

    Parameters
    ----------
    wanted : mapping of flag name to text, True or False
        Flags to set, to give without a value, or to remove. What already holds stays untouched.
    form : FlagForm
        Family of the flags, and its spelling.
    near : tuple of str
        Flags beside which a new one may go.
    computed : tuple of str
        Flags that may follow along, for the script computes them from the others.

    Raises
    ------
    InputError
        When a value cannot be set without changing another.
    """
    before = flags_of(script, form)
    for name, setting in wanted.items():
        if _has_setting(flags_of(script, form), name, setting):
            continue
        if isinstance(setting, tuple) and name in flags_of(script, form).by_name:
            # As many words as there are: what is there goes as a whole.
            script = _reparse(script, _splices(script, form, name, False, wanted, near))
        script = _reparse(script, _splices(script, form, name, setting, wanted, near))
    _verify(before, flags_of(script, form), wanted, computed)
    return script


def _reparse(script: ShellScript, splices: list[Splice]) -> ShellScript:
    text = script.text
    for start, end, new in sorted(splices, reverse=True):
        text = text[:start] + new + text[end:]
    return ShellScript(text, script.file, start=script.start)


def _has_setting(flags: Flags, name: str, setting: Setting) -> bool:
    flag = flags.by_name.get(name)
    if setting is False:
        return flag is None
    if flag is None:
        return False
    if setting is True:
        return True
    if isinstance(setting, tuple):
        return tuple(word.text for word in flag.values) == setting
    return bool(flag.values) and flag.values[0].text == setting


def _splices(
    script: ShellScript,
    form: FlagForm,
    name: str,
    setting: Setting,
    wanted: Mapping[str, Setting],
    near: tuple[str, ...],
) -> list[Splice]:
    flags = flags_of(script, form)
    flag = flags.by_name.get(name)
    if flag is None:
        assert setting is not False
        return [_insertion(script, flags, form, name, setting, near)]
    if setting is False:
        return [_removal(script, each) for each in flags.flags if each.name == name]
    assert isinstance(setting, str)
    if not flag.values:
        span = _span(script, flag.word, name)
        return [(span[1], span[1], f" {_quoted(script, span[1] - 1, setting)}")]
    value = flag.values[0]
    place = value.span()
    if place is not None and not _shared(flags, flag, value, setting, wanted):
        return [(*place, _quoted(script, place[0], setting))]
    use = _use_behind(script, flag)
    if use is None:
        raise InputError(
            "has a value put together from several places",
            file=script.file,
            field=f"--{name}",
            value=value.text,
            cure="write the number after the flag",
        )
    return [(*use, _quoted(script, use[0], setting))]


def _use_behind(script: ShellScript, flag: Flag) -> tuple[int, int] | None:
    """The one expansion (``$NAME``, ``${NAME}``) that stands behind a flag and brings its whole value."""
    own = Word(flag.word.chars[: len(flag.name) + 3] if flag.joined else flag.word.chars).span()
    if own is None:
        return None
    match = _USE.match(script.text, own[1])
    return match.span(1) if match else None


def _shared(flags: Flags, own: Flag, value: Word, setting: str, wanted: Mapping[str, Setting]) -> bool:
    """Return whether the value's characters also reach a flag that is to keep another value."""
    if value.via() is None:
        return False
    places = {char.at for char in value.chars}
    for flag in flags.flags:
        if flag is own or wanted.get(flag.name) == setting:
            continue
        for word in (flag.word, *flag.values):
            if places & {char.at for char in word.chars if char.at is not None}:
                return True
    return False


def _span(script: ShellScript, word: Word, name: str) -> tuple[int, int]:
    span = word.span()
    if span is None:
        raise InputError(
            "is put together from several places",
            file=script.file,
            field=f"--{name}",
            value=word.text,
            cure="write the flag in one piece",
        )
    return span


def _line(text: str, at: int) -> tuple[int, int]:
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    return start, len(text) if end < 0 else end


def _quoted(script: ShellScript, at: int, setting: str) -> str:
    """A value as it is written at a place: quoted where the shell would split it."""
    return setting if _PLAIN.fullmatch(setting) or script.quote_at(at) else f"'{setting}'"


def _insertion(
    script: ShellScript, flags: Flags, form: FlagForm, name: str, setting: Setting, near: tuple[str, ...]
) -> Splice:
    text = script.text
    for anchor in (*near, *form.beside):
        flag = flags.by_name.get(anchor)
        span = flag.word.span() if flag is not None else None
        if span is None:
            continue
        flag_text = form.written(name)
        values = setting if isinstance(setting, tuple) else () if setting is True else (str(setting),)
        written = " ".join([flag_text, *(_quoted(script, span[0], value) for value in values)])
        start, end = _line(text, span[0])
        indent = text[start : span[0]]
        if indent.strip():
            return span[0], span[0], written + " "  # The flag shares its line with others.
        newline = "\r\n" if text[start:end].endswith("\r") else "\n"
        line = text[start:end].rstrip()
        previous = text[:start].rstrip("\r\n").rsplit("\n", 1)[-1].rstrip()
        continued = line.endswith("\\") or previous.endswith("\\") or not _quoted_or_array(script, span[0])
        continued = continued and script.quote_at(span[0]) != "'"  # There a backslash would be a word.
        return span[0], span[0], written + (" \\" if continued else "") + newline + indent
    raise InputError(
        "finds no place for a new flag",
        file=script.file,
        field=form.written(name),
        cure=f"write {form.written(form.beside[0])} in one piece",
    )


def _quoted_or_array(script: ShellScript, at: int) -> bool:
    """Return whether a place lies inside a variable's value rather than in the command itself."""
    for variable in script.variables.values():
        for word in variable.words:
            if any(char.at == at for char in word.chars):
                return True
    return False


def _removal(script: ShellScript, flag: Flag) -> Splice:
    text = script.text
    start, end = _span(script, flag.word, flag.name)
    for value in flag.values if not flag.joined else ():
        via = value.via()
        if via is not None and start < via[0] and via[1] <= end:
            continue  # A further word of an expansion that is gone already.
        # Where the value is written right behind the flag: as an expansion, or as it is.
        places = [
            span
            for span in (value.via(), value.span())
            if span is not None and span[0] >= end and not text[end : span[0]].strip(" \t\\\r\n\"'")
        ]
        if not places:
            cure = "take the flag out of the file first"
            problem = "has a value that is not written behind it"
            raise InputError(problem, file=script.file, field=f"--{flag.name}", cure=cure)
        end = places[0][1]
        if text[end : end + 1] in ('"', "'") and text[places[0][0] - 1] == text[end]:
            end += 1
    line_start, line_end = _line(text, start)
    before, after = text[line_start:start], text[end : _line(text, end)[1]]
    tail = after.strip()
    alone = not before.strip() and tail in ("", "\\")
    if alone and (tail == "\\" or _quoted_or_array(script, start)):
        return line_start, min(len(text), _line(text, end)[1] + 1), ""
    if after.startswith(" ") and tail:
        end += 1
    return start, end, ""


def set_variable(script: ShellScript, name: str, value: str) -> ShellScript | None:
    """The script with a variable's plain value changed; None where it has no such variable."""
    variable = script.variables.get(name)
    if variable is None or variable.array:
        return None
    span = variable.words[0].span()
    if span is None or variable.words[0].via() is not None:
        return None
    return _reparse(script, [(*span, value)])


def _verify(before: Flags, after: Flags, wanted: Mapping[str, Setting], computed: tuple[str, ...]) -> None:
    """Check that the wanted flags hold and that every other flag of the launch is as it was."""
    for name, setting in wanted.items():
        if not _has_setting(after, name, setting):
            raise InputError("cannot be set", file=before.file, field=f"--{name}", value=setting)

    def others(flags: Flags) -> list[tuple[str, tuple[str, ...]]]:
        return [
            (flag.name, tuple(word.text for word in flag.values))
            for flag in flags.flags
            if flag.name not in wanted and flag.name not in computed
        ]

    for old, new in zip(others(before), others(after), strict=False):
        if old != new:
            raise InputError(
                "cannot be changed alone",
                file=before.file,
                field=f"--{old[0]}",
                value=" ".join(old[1]),
                cure="give each flag a value of its own",
            )
    if len(others(before)) != len(others(after)):
        raise InputError("its flags cannot be changed alone", file=before.file)


def plain_value(value: object, file: object, name: str) -> Setting:
    """A setting from plain data; refuses text that a shell would split.

    Raises
    ------
    InputError
        When the text holds blanks, quotes, ``$`` or other characters with a meaning to the shell.
    """
    if isinstance(value, bool) or value is None:
        return bool(value)
    text = str(value)
    if not _PLAIN.fullmatch(text):
        raise InputError("contains characters that a shell would split or expand", field=f"--{name}", value=text)
    return text


def has_setting(flags: Flags, name: str, setting: Setting) -> bool:
    """Return whether a launch has a flag set so."""
    flag = flags.by_name.get(name)
    if isinstance(setting, bool) or flag is None:
        return (flag is not None) is setting
    if isinstance(setting, tuple):
        return tuple(word.text for word in flag.values) == setting
    return bool(flag.values) and flag.values[0].text == setting


def yaml_value(setting: Setting) -> Any:
    """A setting as YAML states it: a number where the same text comes of it."""
    if isinstance(setting, str) and re.fullmatch(r"\d{1,18}(\.\d{1,18})?", setting):
        number = float(setting) if "." in setting else int(setting)
        return number if str(number) == setting else setting
    return list(setting) if isinstance(setting, tuple) else setting
