"""Values taken out of a config.json, each checked, with the documented defaults of its model type below them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from taylor.base.errors import InputError
from taylor.parsers.text.fields import MAX_LAYERS, MAX_SIZE

MAX_LISTED = 4 * MAX_LAYERS
"""Entries that a list in a configuration may have."""

Value = TypeVar("Value")

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
HIDDEN = ("hidden_size", "n_embd", "d_model")
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
TOP_K = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k", "moe_k",
    "top_k_experts",
)  # fmt: skip
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "num_attention_groups")
MTP_LAYERS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
"""One quantity under the names that model types give it (the ``attribute_map`` of their classes in transformers)."""

OWN_HEAD = "the model type's class has its own head anyway"
"""Reason why a tied head is refused where transformers ignores it."""


class Values:
    """A read-only view of one mapping of a config.json.

    A value that the mapping has, null included, goes before the default; that is what transformers does.

    Parameters
    ----------
    data : mapping
        Content of the file at `prefix`.
    file : Path
        Named in errors.
    model_type : str
        Named in errors.
    defaults : mapping
        Values of the model type's class where the file is silent.
    prefix : str
        Dotted path of the mapping in the file.
    """

    def __init__(
        self, data: Mapping[str, Any], file: Path, model_type: str, defaults: Mapping[str, Any], prefix: str = ""
    ) -> None:
        self.data, self.file, self.model_type, self.defaults, self.prefix = data, file, model_type, defaults, prefix
        self.asked: set[str] = set()
        self.notes: list[str] = []

    def path(self, name: str) -> str:
        """Dotted path of an entry."""
        return f"{self.prefix}.{name}" if self.prefix else name

    def error(self, name: str, problem: str, value: Any = InputError._NO_VALUE, cure: str | None = None) -> InputError:
        """An error about one entry of this mapping."""
        return InputError(problem, file=self.file, field=self.path(name), value=value, cure=cure)

    def has(self, *names: str) -> bool:
        """Return whether the file holds a value other than null under any of the names."""
        self.asked.update(names)
        return any(self.data.get(name) is not None for name in names)

    def value(self, *names: str) -> tuple[str, Any]:
        """The value under any of the names, which mean the same, and the name that has it; unchecked.

        Raises
        ------
        InputError
            When two of the names hold different values, or none holds one and the model type has no default.
        """
        self.asked.update(names)
        given = {name: self.data[name] for name in names if name in self.data}
        known = {name: value for name, value in given.items() if value is not None}
        first = next(iter(known), None)
        if first is not None:
            other = next((name for name in known if name != first and known[name] != known[first]), None)
            if other is not None:
                raise self.error(other, f"differs from {first}, which is {known[first]!r}", known[other], "keep one")
            return first, known[first]
        if given:
            return next(iter(given)), None
        for name in names:
            if name in self.defaults:
                return name, self.defaults[name]
        also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        problem = f"is missing{also}, and model type {self.model_type} has no default for it"
        raise self.error(names[0], problem, cure="add it to the file")

    def size(self, *names: str, low: int = 1, high: int = MAX_SIZE) -> int:
        """A whole number in [low, high].

        Raises
        ------
        InputError
            When it is missing, no whole number, or out of range.
        """
        name, value = self.value(*names)
        return self.whole(name, value, low, high)

    def size_or_none(self, *names: str, low: int = 1, high: int = MAX_SIZE) -> int | None:
        """A whole number in [low, high]; None where it is null, or neither the file nor the model type has one."""
        name, value = names[0], None
        if any(each in self.data or each in self.defaults for each in names):
            name, value = self.value(*names)
        self.asked.update(names)
        return None if value is None else self.whole(name, value, low, high)

    def whole(self, name: str, value: Any, low: int = 1, high: int = MAX_SIZE) -> int:
        """A value that must be a whole number in [low, high]; `name` is its entry."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, "must be a whole number", value, f"write a number from {low} to {high}")
        if not low <= value <= high:
            raise self.error(name, f"must be from {low} to {high}", value)
        return value

    def number(self, name: str, low: float = 0.0, high: float = 1e6) -> float:
        """A finite number in (low, high].

        Raises
        ------
        InputError
            When it is missing, no number, or out of range.
        """
        value = self.value(name)[1]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value <= high:
            raise self.error(name, f"must be a number above {low:g} and at most {high:g}", value)
        return float(value)

    def flag(self, *names: str) -> bool:
        """True or false; null counts as false, and so does what neither the file nor the model type has."""
        if not any(each in self.data or each in self.defaults for each in names):
            self.asked.update(names)
            return False
        name, value = self.value(*names)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false", value)
        return value

    def text_or_none(self, name: str) -> str | None:
        """A text; None where it is null or missing."""
        value = self.value(name)[1] if name in self.data or name in self.defaults else None
        self.asked.add(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, "must be text", value, "put it in quotes")
        return value

    def list_or_none(self, name: str, each: Callable[[str, Any], Value]) -> list[Value] | None:
        """A list, every entry checked by `each`, which takes the entry's path and value; None where null or missing."""
        value = self.value(name)[1] if name in self.data or name in self.defaults else None
        self.asked.add(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.error(name, "must be a list", value)
        if len(value) > MAX_LISTED:
            raise self.error(name, f"has {len(value)} entries, at most {MAX_LISTED} are read")
        return [each(f"{name}[{at}]", item) for at, item in enumerate(value)]

    def by_layer(self, name: str, each: Callable[[str, Any], Value], layers: int) -> list[Value] | None:
        """A list with an entry a layer; entries beyond the layers, where MTP modules stand, are left out.

        Raises
        ------
        InputError
            When it has fewer entries than there are layers.
        """
        listed = self.list_or_none(name, each)
        if listed is not None and len(listed) < layers:
            raise self.error(name, f"has {len(listed)} entries, the model has {layers} layers", cure="name every layer")
        return listed[:layers] if listed is not None else None

    def one_of(self, known: Mapping[str, Value]) -> Callable[[str, Any], Value]:
        """A check for an entry that must be one of the known texts; gives what it stands for."""

        def check(name: str, value: Any) -> Value:
            if not isinstance(value, str) or value not in known:
                raise self.error(name, "is no kind of layer known here", value, f"known are {', '.join(known)}")
            return known[value]

        return check

    def zero_or_one(self, name: str, value: Any) -> bool:
        """A check for an entry that must be 0 or 1."""
        return bool(self.whole(name, value, 0, 1)) if not isinstance(value, bool) else value

    def section(self, name: str, defaults: Mapping[str, Any]) -> Values:
        """A sub-mapping, empty where null or missing.

        Raises
        ------
        InputError
            When the entry is there and is no mapping.
        """
        self.asked.add(name)
        value = self.data.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(name, "must have names and values", value)
        return Values(value, self.file, self.model_type, defaults, self.path(name))

    def must_be(self, name: str, wanted: Any, why: str) -> None:
        """Refuse a value that changes the shape in a way that is not modelled.

        Raises
        ------
        InputError
            When the file, or the model type's default, has another value than `wanted`.
        """
        self.asked.add(name)
        value = self.data.get(name, self.defaults.get(name, wanted))
        if value is not None and value != wanted:
            raise self.error(name, f"is read for {wanted!r} alone: {why}", value)
