"""The options of a job by their dotted keys, whatever file states them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from taylor.parsers.megatron.named_sizes import word
from taylor.parsers.text.flags import Flag, Flags
from taylor.parsers.text.shell_words import Word

NOTHING = ("", "null", "none", "~", "{}", "[]")
"""Values that mean none, in lower case."""
_QUOTED = re.compile(r"""(["'])(.*)\1""")


class Options(Flags):
    """All options of a job, each a `Flag` whose name is its dotted key; those without a value are absent."""

    usual: frozenset[str] = frozenset()
    """Options that hold by the tool's defaults alone."""

    def is_on(self, name: str, default: bool = False) -> bool:
        """Return whether a switch is on.

        Raises
        ------
        InputError
            When its value is neither true nor false.
        """
        written = str(self.text(name, default="true" if default else "false")).lower()
        if written not in ("true", "false", "1", "0", "yes", "no"):
            raise self.error(name, "must be true or false", written, "write one of the two")
        return written in ("true", "1", "yes")

    def below(self, prefix: str) -> dict[str, Flag]:
        """The options below a prefix that ends with a dot, by the rest of their key."""
        return {name[len(prefix) :]: each for name, each in self.by_name.items() if name.startswith(prefix)}

    def under(self, defaults: Mapping[str, str]) -> Options:
        """These options with some that hold where they are absent."""
        missing = [option(name, value) for name, value in defaults.items() if name not in self.by_name]
        options = Options(self.file, [*missing, *self.flags], place=self._place, start=self.start)
        options.usual = frozenset(each.name for each in missing)
        return options


def option(name: str, value: str | Word) -> Flag:
    """An option with its value."""
    return Flag(name, word(name), (word(value) if isinstance(value, str) else value,))


def items_of(text: str) -> list[str]:
    """The items of a list as YAML and Hydra write one: ``[core_attn, moe]``; a bare word is the only item."""
    inside = text.strip()
    if inside.startswith("[") and inside.endswith("]"):
        inside = inside[1:-1]
    return [unquoted(part.strip()) for part in inside.split(",") if part.strip()]


def unquoted_word(value: Word) -> Word:
    """A value without the quotes around it, which Hydra and OmegaConf take off."""
    return Word(value.chars[1:-1]) if _QUOTED.fullmatch(value.text) else value


def unquoted(text: str) -> str:
    """A text without the quotes around it."""
    match = _QUOTED.fullmatch(text)
    return match[2] if match else text
