"""Table of Megatron-Bridge's published recipes, read from their source as text: no line of it is run.

Run from the repository's root with a checkout of NVIDIA-NeMo/Megatron-Bridge::

    python -m benchmarks.bridge_recipes ../Megatron-Bridge 067f987d > parsers/bridge/recipes.yaml

A recipe is a function that sets fields of a ``ConfigContainer``. Its syntax tree is followed: assignments, calls of
other functions of the same source, conditions on known values. What this reader does not know (a tokenizer, a path, the
device of a run) is left out, and so is every field that no plan depends on (`KEPT`).
"""

from __future__ import annotations

import ast
import copy
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

SOURCE = Path("src/megatron/bridge")
FOLDERS = ("perf_recipes", "recipes")
MOST_CALLS = 20_000
KEPT: Mapping[str, tuple[str, ...]] = {
    "model": ("",),
    "train": ("micro_batch_size", "global_batch_size"),
    "ddp": ("",),
    "optimizer": ("optimizer", "use_precision_aware", "main_", "exp_avg", "optimizer_cpu_offload", "optimizer_offload",
                  "use_distributed_optimizer", "overlap_param_gather"),
    "dataset": ("seq_length", "enable_in_batch_packing", "enable_offline_packing"),
    "mixed_precision": ("",),
    "comm_overlap": ("tp_comm_overlap", "overlap_", "delay_wgrad", "batch_p2p", "defer_embedding", "align_param"),
    "dist": ("use_megatron_fsdp", "use_decentralized_pg", "use_tp_pp_dp_mapping"),
}  # fmt: skip
"""Sections and beginnings of the fields that are written."""
PEFT = (
    "target_modules", "exclude_modules", "dim", "dropout", "normalize_moe_lora", "share_expert_adapters",
    "experts_shared_outer_loras",
)  # fmt: skip
"""Fields of adapters that are written (src/megatron/bridge/peft/lora.py:92-160)."""
WITHOUT_EFFECT = (
    "check_for_", "pipeline_dtype", "params_dtype", "init_method_std", "moe_hybridep_num_sms", "autocast_enabled",
    "rotary_", "yarn_", "cuda_graph_warmup", "use_te_rng_tracker", "moe_aux_loss_coeff", "mtp_loss_scaling",
    "moe_mlp_glu_interleave", "moe_router_padding", "moe_router_fusion", "reuse_grad_buf", "perform_init",
    "average_in_collective", "fp8_amax", "fp8_margin", "persist_layer_norm", "masked_softmax_fusion",
    "apply_query_key_layer_scaling", "cross_entropy_fusion_impl", "grad_scale_func", "moe_z_loss",
)  # fmt: skip
"""Beginnings of fields that change neither memory, time nor placement."""
ON_BY_DEFAULT = (
    "model.apply_rope_fusion", "model.add_bias_linear", "model.gradient_accumulation_fusion",
    "model.share_embeddings_and_output_weights", "model.cross_entropy_loss_fusion", "model.bias_activation_fusion",
    "model.bias_dropout_fusion", "model.moe_grouped_gemm", "model.gated_linear_unit", "model.should_pad_vocab",
    "model.overlap_p2p_comm", "model.moe_permute_fusion", "model.bias_swiglu_fusion",
)  # fmt: skip
SETTLING = ("_parallel_", "recompute", "batch_size", "seq_length", "num_layers", "layout", "offload", "fp8", "fp4")
"""Parts of the names of fields without which a job cannot be priced."""


class Unknown:
    """A value that the text does not settle."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN = Unknown()


class Gone(Exception):
    """A recipe that raises, or that is too deep to follow."""


@dataclass
class Node:
    """An object with fields; `kind` is its class or the function that made it."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class Module:
    """Names of one source file: functions, constants and imports."""

    path: Path
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Function:
    """A function of the source, and the module that its names come from."""

    module: Module
    tree: ast.FunctionDef


@dataclass(frozen=True)
class Bound:
    """A method of an object, for the few that are known."""

    owner: Any
    name: str


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class Source:
    """The source files of a checkout, parsed when they are asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: dict[str, Module | None] = {}

    def module(self, dotted: str) -> Module | None:
        """The module of a dotted name below ``megatron.bridge``; None elsewhere."""
        if dotted not in self._modules:
            self._modules[dotted] = self._parsed(dotted)
        return self._modules[dotted]

    def _parsed(self, dotted: str) -> Module | None:
        prefix = "megatron.bridge"
        if dotted != prefix and not dotted.startswith(prefix + "."):
            return None
        below = self.root / SOURCE / dotted.removeprefix(prefix).removeprefix(".").replace(".", "/")
        for path in (below / "__init__.py", below.with_suffix(".py")):
            if path.is_file():
                return _names(path, ast.parse(path.read_text(encoding="utf-8")), dotted)
        return None

    def named(self, module: Module, name: str) -> Any:
        """The function or constant behind a name of a module; None where it is neither."""
        seen = set()
        current: Module | None = module
        while current is not None and (current.path, name) not in seen:
            seen.add((current.path, name))
            if name in current.functions:
                return Function(current, current.functions[name])
            if name in current.values:
                return current, current.values[name]
            if name not in current.imports:
                return None
            dotted, name = current.imports[name]
            current = self.module(dotted)
        return None


def _names(path: Path, tree: ast.Module, dotted: str) -> Module:
    module = Module(path)
    package = dotted if path.name == "__init__.py" else dotted.rpartition(".")[0]
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            module.functions[statement.name] = statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            module.values[statement.targets[0].id] = statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            module.values[statement.target.id] = statement.value
        elif isinstance(statement, ast.ImportFrom):
            _import(module, statement, package)
    return module


def _import(module: Module, statement: ast.ImportFrom, package: str) -> None:
    base = statement.module or ""
    if statement.level:
        parts = package.split(".")
        base = ".".join([*parts[: len(parts) - statement.level + 1], *([base] if base else [])])
    for each in statement.names:
        module.imports[each.asname or each.name] = (base, each.name)


_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda one, other: one in other, ast.NotIn: lambda one, other: one not in other,
}  # fmt: skip
_COMPUTE: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Div: operator.truediv,
}  # fmt: skip


_MAKERS = ("to_megatron_provider", "get_model_config")
"""Methods that turn a Hugging Face model into one of Megatron's."""


class Reader:
    """Follows one recipe's syntax tree."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.calls = 0

    def call(self, function: Function, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The value that a function returns."""
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise Gone
        names = self._bind(function, values, named)
        imports = Module(function.module.path, function.module.functions, function.module.values,
                         dict(function.module.imports))  # fmt: skip
        try:
            self.run(function.tree.body, names, imports)
        except _Return as returned:
            return returned.value
        return None

    def _bind(self, function: Function, values: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        given = function.tree.args
        arguments = [*given.posonlyargs, *given.args]
        names: dict[str, Any] = {each.arg: UNKNOWN for each in (*arguments, *given.kwonlyargs)}
        for each, tree in zip(arguments[len(arguments) - len(given.defaults) :], given.defaults, strict=True):
            names[each.arg] = self.value(tree, {}, function.module)
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            if default is not None:
                names[each.arg] = self.value(default, {}, function.module)
        names |= {each.arg: value for each, value in zip(arguments, values, strict=False)}
        known = {name: value for name, value in named.items() if name in names}
        if given.kwarg is not None:
            names[given.kwarg.arg] = {name: value for name, value in named.items() if name not in names}
        return names | known

    def run(self, body: Sequence[ast.stmt], names: dict[str, Any], module: Module) -> None:
        """Follow statements in order."""
        for statement in body:
            if isinstance(statement, ast.Return):
                raise _Return(None if statement.value is None else self.value(statement.value, names, module))
            if isinstance(statement, ast.Raise):
                raise Gone
            if isinstance(statement, ast.Assign):
                value = self.value(statement.value, names, module)
                for target in statement.targets:
                    self._assign(target, value, names, module)
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self._assign(statement.target, self.value(statement.value, names, module), names, module)
            elif isinstance(statement, ast.AugAssign):
                self._assign(statement.target, UNKNOWN, names, module)
            elif isinstance(statement, ast.Expr):
                self.value(statement.value, names, module)
            elif isinstance(statement, ast.If):
                self._branch(statement, names, module)
            elif isinstance(statement, ast.ImportFrom):
                _import(module, statement, "megatron.bridge")
            elif isinstance(statement, ast.For):
                self._loop(statement, names, module)

    def _branch(self, statement: ast.If, names: dict[str, Any], module: Module) -> None:
        test = self.value(statement.test, names, module)
        if test is not UNKNOWN:
            self.run(statement.body if test else statement.orelse, names, module)

    def _loop(self, statement: ast.For, names: dict[str, Any], module: Module) -> None:
        values = self.value(statement.iter, names, module)
        if isinstance(values, (list, tuple, dict)):
            for value in values:
                self._assign(statement.target, value, names, module)
                self.run(statement.body, names, module)

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any], module: Module) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, names, module)
            if isinstance(owner, Node):
                owner.fields[target.attr] = value
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value, names, module), self.value(target.slice, names, module)
            if isinstance(owner, dict) and isinstance(key, (str, int)):
                owner[key] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value if isinstance(value, (tuple, list)) else [UNKNOWN] * len(target.elts)
            for each, part in zip(target.elts, parts, strict=False):
                self._assign(each, part, names, module)

    # ---- expressions ----------------------------------------------------------------------------

    def value(self, tree: ast.expr, names: dict[str, Any], module: Module) -> Any:
        """The value of an expression; `UNKNOWN` where the text does not settle it."""
        reader = getattr(self, f"_{type(tree).__name__.lower()}", None)
        return UNKNOWN if reader is None else reader(tree, names, module)

    def _constant(self, tree: ast.Constant, names: dict[str, Any], module: Module) -> Any:
        return tree.value

    def _name(self, tree: ast.Name, names: dict[str, Any], module: Module) -> Any:
        if tree.id in names:
            return names[tree.id]
        found = self.source.named(module, tree.id)
        if isinstance(found, tuple):
            return self.value(found[1], {}, found[0])
        if found is not None:
            return found
        return Bound(None, tree.id)

    def _attribute(self, tree: ast.Attribute, names: dict[str, Any], module: Module) -> Any:
        owner = self.value(tree.value, names, module)
        if isinstance(owner, Node):
            if tree.attr not in owner.fields and owner.kind == "container":
                owner.fields[tree.attr] = Node(tree.attr)
            return owner.fields.get(tree.attr, Bound(owner, tree.attr) if tree.attr in _MAKERS else UNKNOWN)
        if isinstance(owner, Bound) and owner.name == "torch":
            return f"torch.{tree.attr}"
        return Bound(owner, tree.attr)

    def _list(self, tree: ast.List, names: dict[str, Any], module: Module) -> Any:
        return [self.value(each, names, module) for each in tree.elts]

    def _tuple(self, tree: ast.Tuple, names: dict[str, Any], module: Module) -> Any:
        return tuple(self.value(each, names, module) for each in tree.elts)

    def _dict(self, tree: ast.Dict, names: dict[str, Any], module: Module) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(tree.keys, tree.values, strict=True):
            read = self.value(value, names, module)
            if key is None:
                found |= read if isinstance(read, dict) else {}
                continue
            name = self.value(key, names, module)
            if isinstance(name, (str, int, tuple)):
                found[name] = read
        return found

    def _subscript(self, tree: ast.Subscript, names: dict[str, Any], module: Module) -> Any:
        owner, key = self.value(tree.value, names, module), self.value(tree.slice, names, module)
        try:
            return owner[key]
        except (TypeError, KeyError, IndexError):
            return UNKNOWN

    def _joinedstr(self, tree: ast.JoinedStr, names: dict[str, Any], module: Module) -> Any:
        parts = [
            self.value(each.value if isinstance(each, ast.FormattedValue) else each, names, module)
            for each in tree.values
        ]
        return UNKNOWN if any(isinstance(part, (Unknown, Node, Bound)) for part in parts) else "".join(map(str, parts))

    def _ifexp(self, tree: ast.IfExp, names: dict[str, Any], module: Module) -> Any:
        test = self.value(tree.test, names, module)
        return UNKNOWN if test is UNKNOWN else self.value(tree.body if test else tree.orelse, names, module)

    def _boolop(self, tree: ast.BoolOp, names: dict[str, Any], module: Module) -> Any:
        value: Any = UNKNOWN
        for each in tree.values:
            value = self.value(each, names, module)
            if value is UNKNOWN or bool(value) != isinstance(tree.op, ast.And):
                return value
        return value

    def _unaryop(self, tree: ast.UnaryOp, names: dict[str, Any], module: Module) -> Any:
        value = self.value(tree.operand, names, module)
        if isinstance(value, (Unknown, Node, Bound)):
            return UNKNOWN
        return (not value) if isinstance(tree.op, ast.Not) else -value

    def _binop(self, tree: ast.BinOp, names: dict[str, Any], module: Module) -> Any:
        one, other = self.value(tree.left, names, module), self.value(tree.right, names, module)
        compute = _COMPUTE.get(type(tree.op))
        try:
            return UNKNOWN if compute is None or UNKNOWN in (one, other) else compute(one, other)
        except (TypeError, ZeroDivisionError):
            return UNKNOWN

    def _compare(self, tree: ast.Compare, names: dict[str, Any], module: Module) -> Any:
        one, other = self.value(tree.left, names, module), self.value(tree.comparators[0], names, module)
        if len(tree.ops) > 1 or one is UNKNOWN or other is UNKNOWN:
            return UNKNOWN
        try:
            return _COMPARE[type(tree.ops[0])](one, other)
        except TypeError:
            return UNKNOWN

    def _call(self, tree: ast.Call, names: dict[str, Any], module: Module) -> Any:
        values = [self.value(each, names, module) for each in tree.args if not isinstance(each, ast.Starred)]
        named: dict[str, Any] = {}
        for each in tree.keywords:
            value = self.value(each.value, names, module)
            named |= {each.arg: value} if each.arg is not None else value if isinstance(value, dict) else {}
        called = self.value(tree.func, names, module)
        if isinstance(called, Function):
            return self.call(called, values, named)
        return self._known(called, values, named) if isinstance(called, Bound) else UNKNOWN

    def _known(self, called: Bound, values: list[Any], named: dict[str, Any]) -> Any:
        name, owner = called.name, called.owner
        if name == "from_hf_pretrained" or name == "from_hf_config":
            return Node("bridge", {"_hf": values[0] if values else named.get("hf_model_id", UNKNOWN)})
        if name in _MAKERS and isinstance(owner, Node):
            return Node("model", {"_hf": owner.fields.get("_hf", UNKNOWN)})
        if name == "lower" and isinstance(owner, str):
            return owner.lower()
        if name == "cast" and len(values) == 2:
            return values[1]
        if name in ("deepcopy", "copy") and values:
            return copy.deepcopy(values[0])
        if name == "ConfigContainer":
            return Node("container", dict(named))
        if name in ("getattr", "hasattr", "setattr", "isinstance", "len", "str", "int", "set", "list", "max", "min"):
            return self._builtin(name, values)
        if name[:1].isupper() and owner is None:
            return Node(name, {"_class": name, **named})
        return UNKNOWN

    def _builtin(self, name: str, values: list[Any]) -> Any:
        owner = values[0] if values else UNKNOWN
        if name == "isinstance":
            kind = values[1].name if len(values) > 1 and isinstance(values[1], Bound) else ""
            return isinstance(owner, str) if kind == "str" else UNKNOWN
        if isinstance(owner, Node) and len(values) > 1 and isinstance(values[1], str):
            if name == "hasattr":
                return values[1] in owner.fields
            if name == "setattr":
                owner.fields[values[1]] = values[2]
            return owner.fields.get(values[1], values[2] if len(values) > 2 else UNKNOWN)
        plain: Mapping[str, Callable[..., Any]] = {"len": len, "str": str, "int": int, "max": max, "min": min}
        if name in plain and not any(isinstance(value, (Unknown, Node, Bound)) for value in values):
            try:
                return plain[name](*values)
            except (TypeError, ValueError):
                return UNKNOWN
        return UNKNOWN


def recipe_names(source: Source) -> Iterator[tuple[str, Function]]:
    """The recipes of a checkout by the names that ``--recipe`` takes.

    Of two with one name the benchmark's counts (scripts/training/recipe_runner.py:234-247).
    """
    seen = set()
    for folder in FOLDERS:
        for path in sorted((source.root / SOURCE / folder).rglob("*.py")):
            below = path.relative_to(source.root / SOURCE).with_suffix("")
            parts = below.parts[:-1] if below.name == "__init__" else below.parts
            module = source.module(".".join(("megatron.bridge", *parts)))
            if module is None:
                continue
            others = () if folder == "perf_recipes" else (*module.values, *module.imports)
            for name in (*module.functions, *others):
                if not name.endswith("_config") or name.startswith("_") or name in seen:
                    continue
                found = source.named(module, name)
                if isinstance(found, tuple):
                    found = Reader(source).value(found[1], {}, found[0])
                if isinstance(found, Function) and _returns_container(found):
                    seen.add(name)
                    yield name, found


def _returns_container(function: Function) -> bool:
    returned = function.tree.returns
    return returned is not None and "ConfigContainer" in ast.unparse(returned)


def record(source: Source, name: str, function: Function) -> dict[str, Any] | None:
    """One row of the table; None where the recipe cannot be followed or builds no model."""
    try:
        container = Reader(source).call(function, (), {})
    except (Gone, RecursionError):
        return None
    if not isinstance(container, Node) or not isinstance(container.fields.get("model"), Node):
        return None
    model = container.fields["model"]
    place = function.module.path.relative_to(source.root / SOURCE).as_posix()
    row: dict[str, Any] = {"source": f"{place}:{function.tree.lineno}"}
    hf = model.fields.get("hf_model_id") or model.fields.get("_hf")
    if isinstance(hf, str):
        row["model"] = hf
    elif "_class" in model.fields:
        row["provider"] = model.fields["_class"]
    precision = container.fields.get("mixed_precision")
    if isinstance(precision, str):
        found = source.module("megatron.bridge.training.mixed_precision")
        if found is not None and precision in found.functions:
            container.fields["mixed_precision"] = Reader(source).call(
                Function(found, found.functions[precision]), (), {}
            )
    peft = container.fields.get("peft")
    if isinstance(peft, Node):
        stated = {key: _plain(value) for key, value in peft.fields.items() if key in PEFT}
        if UNKNOWN in stated.values():
            return {**row, "adapters": True}
        row["peft"] = {"kind": peft.kind, **stated}
    elif isinstance(peft, Function) or peft is UNKNOWN:
        return {**row, "adapters": True}
    row["options"] = dict(_options(container))
    if model.fields.get("_pipeline_model_parallel_layout_builder") is not None:
        row["rebuilds"] = True
    open_fields = sorted(set(_unsettled(container)))
    return {**row, "unsettled": open_fields} if open_fields else row


def _unsettled(container: Node) -> Iterator[str]:
    for section in KEPT:
        node = container.fields.get(section)
        for key, value in node.fields.items() if isinstance(node, Node) else ():
            if not key.startswith("_") and _plain(value) is UNKNOWN and any(part in key for part in SETTLING):
                yield f"{section}.{key}"


def _options(container: Node) -> Iterator[tuple[str, Any]]:
    for section, kept in KEPT.items():
        node = container.fields.get(section)
        for key, value in node.fields.items() if isinstance(node, Node) else ():
            plain = _plain(value)
            if plain is not UNKNOWN and any(key.startswith(each) for each in kept):
                if key.startswith(("_", *WITHOUT_EFFECT)):
                    continue
                yield f"{section}.{key}", plain


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        parts = [_plain(each) for each in value]
        return UNKNOWN if any(part is UNKNOWN for part in parts) else parts
    return value if value is None or isinstance(value, (bool, int, float, str)) else UNKNOWN


def precisions(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    """The named settings of mixed precision."""
    module = source.module("megatron.bridge.training.mixed_precision")
    if module is None:
        return
    for name, tree in module.functions.items():
        if any(isinstance(each, ast.Name) and each.id == "register" for each in tree.decorator_list):
            found = Reader(source).call(Function(module, tree), (), {})
            if isinstance(found, Node):
                settings = {key: _plain(value) for key, value in found.fields.items()}
                dropped = ("_", *WITHOUT_EFFECT)
                yield name, {key: value for key, value in settings.items() if value and not key.startswith(dropped)}


def table(root: Path, commit: str) -> str:
    """The table as YAML, a line a recipe; a field at None is not written, a further name of a recipe is an alias."""
    source = Source(root)
    lines = [
        "# The published recipes of Megatron-Bridge by the name that --recipe takes, with the fields that they set.",
        "# `python -m benchmarks.bridge_recipes` writes it, which follows their syntax trees and runs none of them.",
        f"# `source` is a line of NVIDIA-NeMo/Megatron-Bridge {commit} below src/megatron/bridge.",
        "precisions:",
    ]
    lines += [f"  {name}: {_line(settings)}" for name, settings in precisions(source)]
    rows: dict[str, dict[str, Any]] = {}
    aliases: dict[str, str] = {}
    first: dict[str, str] = {}
    for name, function in sorted(recipe_names(source), key=lambda pair: (pair[0] != pair[1].tree.name, pair[0])):
        row = record(source, name, function)
        if row is None:
            place = function.module.path.relative_to(source.root / SOURCE).as_posix()
            row = {"source": f"{place}:{function.tree.lineno}", "opaque": True}
        if "options" in row:
            row["options"] = {key: value for key, value in row["options"].items() if _says(key, value)}
        if (known := first.setdefault(_line(row), name)) != name:
            aliases[name] = known
        else:
            rows[name] = row
    usual = _usual([row["options"] for row in rows.values() if "options" in row and "peft" not in row])
    for row in rows.values():
        if "options" in row:
            own = {key: value for key, value in row["options"].items() if key not in usual or usual[key] != value}
            row["options"] = {**own, **{key: None for key in usual if key not in row["options"]}}
    lines += ["usual:", *(f"  {key}: {value}" for key, value in sorted(usual.items()))]
    lines += ["recipes:", *(f"  {name}: {_line(row)}" for name, row in sorted(rows.items()))]
    lines += ["aliases:", *(f"  {name}: {other}" for name, other in sorted(aliases.items()))]
    return "\n".join(lines).replace(": True\n", ": true\n").replace(": False\n", ": false\n") + "\n"


def _usual(options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Values that most recipes set, which their rows do not repeat; a row says null where it lacks one."""
    counts = Counter(
        (key, value) for row in options for key, value in row.items() if isinstance(value, (bool, int, str))
    )
    return {key: value for (key, value), number in counts.items() if 2 * number > len(options)}


def _says(key: str, value: Any) -> bool:
    """Return whether a field differs from what stands for an absent one."""
    return value not in (None, []) and (value is not False or not key.startswith("model.") or key in ON_BY_DEFAULT)


def _line(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(data), default_flow_style=True, sort_keys=False, width=10**6).strip()


if __name__ == "__main__":
    print(table(Path(sys.argv[1]), sys.argv[2]), end="")
