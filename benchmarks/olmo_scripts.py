"""Table of OLMo-core's training scripts, read off their Python as syntax trees; nothing of it is run.

Run from the repository's root with a checkout of OLMo-core and its commit::

    python -m benchmarks.olmo_scripts ../OLMo-core fa6c5014 > parsers/olmo/scripts.yaml

A row is what a script's functions hand to ``TransformerConfig``, ``TransformerTrainModuleConfig`` and the loader, in
the form of the config.json that a run saves; a script whose model is put together after that is a row with a reason.
"""

from __future__ import annotations

import argparse
import ast
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.titan_registry import UNKNOWN, assign, plain

CALLED = "="
"""Key under which a call keeps the name of what it calls."""
MODELS = "src/olmo_core/nn/transformer/config.py"
COOKBOOK = "src/olmo_core/internal/cookbook.py"
TOKENIZERS = {"dolma2": 100278, "dolma2_sigdig": 100278, "gpt_neox_olmo_dolma_v1_5": 50280, "gpt2": 50257}
"""Vocabularies (src/olmo_core/data/tokenizer.py:85-127)."""
SIZELESS = ("backend", "use_flash", "rope", "init_method", "embed_scale")
"""Settings of a model that change no size."""
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_LARGEST = 2**62


class Script:
    """One Python file: its functions, classes and constants.

    Parameters
    ----------
    file : Path
    homes : mapping of str to Script
        Files whose functions the script calls: of ``TransformerConfig`` and of the package's ``cookbook``.
    """

    def __init__(self, file: Path, homes: Mapping[str, Script] | None = None) -> None:
        self.file, self.homes = file, homes or {}
        self.tree = ast.parse(file.read_text(encoding="utf-8"))
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}
        self.classes = {
            node.name: {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
            for node in self.tree.body
            if isinstance(node, ast.ClassDef)
        }
        self.constants: dict[str, Any] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.constants[node.targets[0].id] = self.value(node.value, {}, 0)

    def run(self, node: ast.FunctionDef, names: dict[str, Any], depth: int = 0) -> Any:
        """What a function returns, as far as its text says."""
        return UNKNOWN if depth > 12 else self._follow(node.body, names, depth)

    def _follow(self, body: Sequence[ast.stmt], names: dict[str, Any], depth: int) -> Any:
        for node in body:
            if isinstance(node, ast.Return):
                return UNKNOWN if node.value is None else self.value(node.value, names, depth)
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    assign(target, self.value(node.value, names, depth), names)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                assign(node.target, self.value(node.value, names, depth), names)
            elif isinstance(node, ast.AugAssign):
                before, by = self.value(node.target, names, depth), self.value(node.value, names, depth)
                assign(node.target, self._combined(node.op, before, by), names)
            elif isinstance(node, ast.If):
                test = self.value(node.test, names, depth)
                if test is not UNKNOWN:
                    returned = self._follow(node.body if test else node.orelse, names, depth)
                    if returned is not None:
                        return returned
        return None

    def value(self, node: ast.expr, names: dict[str, Any], depth: int) -> Any:
        """The value of an expression; `UNKNOWN` where the text does not say it."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        return UNKNOWN if method is None else method(node, names, depth)

    def _constant(self, node: ast.Constant, names: dict[str, Any], depth: int) -> Any:
        return node.value

    def _name(self, node: ast.Name, names: dict[str, Any], depth: int) -> Any:
        return names.get(node.id, self.constants.get(node.id, UNKNOWN))

    def _list(self, node: ast.List, names: dict[str, Any], depth: int) -> Any:
        return [self.value(each, names, depth) for each in node.elts]

    _tuple = _list

    def _dict(self, node: ast.Dict, names: dict[str, Any], depth: int) -> Any:
        pairs = zip(node.keys, node.values, strict=True)
        return {self.value(key, names, depth): self.value(each, names, depth) for key, each in pairs if key}

    def _unaryop(self, node: ast.UnaryOp, names: dict[str, Any], depth: int) -> Any:
        value = self.value(node.operand, names, depth)
        if value is UNKNOWN:
            return UNKNOWN
        return -value if isinstance(node.op, ast.USub) else not value if isinstance(node.op, ast.Not) else UNKNOWN

    def _binop(self, node: ast.BinOp, names: dict[str, Any], depth: int) -> Any:
        return self._combined(node.op, self.value(node.left, names, depth), self.value(node.right, names, depth))

    def _combined(self, kind: ast.operator, left: Any, right: Any) -> Any:
        if not all(isinstance(each, (int, float)) and abs(each) < _LARGEST for each in (left, right)):
            return UNKNOWN
        if isinstance(kind, ast.Pow):
            return left**right if abs(right) <= 64 else UNKNOWN
        if type(kind) not in _OPERATORS or (right == 0 and not isinstance(kind, (ast.Add, ast.Sub, ast.Mult))):
            return UNKNOWN
        return _OPERATORS[type(kind)](left, right)

    def _boolop(self, node: ast.BoolOp, names: dict[str, Any], depth: int) -> Any:
        value: Any = UNKNOWN
        for each in node.values:
            value = self.value(each, names, depth)
            if value is UNKNOWN or bool(value) == isinstance(node.op, ast.Or):
                return value
        return value

    def _compare(self, node: ast.Compare, names: dict[str, Any], depth: int) -> Any:
        left, right = self.value(node.left, names, depth), self.value(node.comparators[0], names, depth)
        if UNKNOWN in (left, right) or len(node.ops) > 1:
            return UNKNOWN
        kind = node.ops[0]
        if isinstance(kind, (ast.Is, ast.Eq)):
            return left == right
        return left != right if isinstance(kind, (ast.IsNot, ast.NotEq)) else UNKNOWN

    def _listcomp(self, node: ast.ListComp, names: dict[str, Any], depth: int) -> Any:
        """A list over a range of numbers, as of the names of all blocks."""
        loop = node.generators[0]
        called = loop.iter
        if not (
            isinstance(called, ast.Call) and ast.unparse(called.func) == "range" and isinstance(loop.target, ast.Name)
        ):
            return UNKNOWN
        bounds = [self.value(each, names, depth) for each in called.args]
        if not all(isinstance(each, int) and 0 <= each <= 1000 for each in bounds) or loop.ifs:
            return UNKNOWN
        return [self.value(node.elt, {**names, loop.target.id: at}, depth) for at in range(*bounds)]

    def _joinedstr(self, node: ast.JoinedStr, names: dict[str, Any], depth: int) -> Any:
        parts = [
            self.value(each.value, names, depth)
            if isinstance(each, ast.FormattedValue)
            else self.value(each, names, depth)
            for each in node.values
        ]
        return UNKNOWN if UNKNOWN in parts else "".join(map(str, parts))

    def _ifexp(self, node: ast.IfExp, names: dict[str, Any], depth: int) -> Any:
        test = self.value(node.test, names, depth)
        return UNKNOWN if test is UNKNOWN else self.value(node.body if test else node.orelse, names, depth)

    def _attribute(self, node: ast.Attribute, names: dict[str, Any], depth: int) -> Any:
        inner = self.value(node.value, names, depth)
        if isinstance(inner, dict):
            return inner.get(node.attr, UNKNOWN)
        # A member of an enumeration, as in DataParallelType.hsdp.
        member = inner is UNKNOWN and isinstance(node.value, ast.Name) and node.value.id[:1].isupper()
        return node.attr if member else UNKNOWN

    def _call(self, node: ast.Call, names: dict[str, Any], depth: int) -> Any:
        called = ast.unparse(node.func)
        ordered = [self.value(each, names, depth) for each in node.args]
        given: dict[str, Any] = {}
        for each in node.keywords:
            value = self.value(each.value, names, depth)
            if each.arg is not None:
                given[each.arg] = value
            elif isinstance(value, dict):
                given |= value
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("with_rope_scaling", "merge"):
            return self.value(node.func.value, names, depth)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "replace":
            inner = self.value(node.func.value, names, depth)
            return {**inner, **given} if isinstance(inner, dict) else UNKNOWN
        if called == "kwargs.pop" and isinstance(names.get("kwargs"), dict):
            return names["kwargs"].pop(ordered[0], ordered[1] if len(ordered) > 1 else UNKNOWN)
        if called in ("int", "float", "min", "max") and UNKNOWN not in ordered:
            functions: dict[str, Callable[..., Any]] = {"int": int, "float": float, "min": min, "max": max}
            return functions[called](*ordered)
        if called == "ensure_multiple_of" and UNKNOWN not in ordered:
            return -(-ordered[0] // ordered[1]) * ordered[1]
        if called == "dict":
            return given
        if called.endswith(".padded_vocab_size"):
            return self._padded(node, names, depth)
        return self._entered(called, ordered, given, names, depth)

    def _padded(self, node: ast.Call, names: dict[str, Any], depth: int) -> Any:
        assert isinstance(node.func, ast.Attribute)
        tokenizer = self.value(node.func.value, names, depth)
        kind = tokenizer.get(CALLED, "") if isinstance(tokenizer, dict) else ""
        size = TOKENIZERS.get(str(kind).removeprefix("TokenizerConfig."))
        return UNKNOWN if size is None else -(-size // 128) * 128

    def _entered(
        self, called: str, ordered: list[Any], given: dict[str, Any], names: dict[str, Any], depth: int
    ) -> Any:
        """The value of a call to a function of this file, a constructor of models, or anything else."""
        if called in self.functions:
            node = self.functions[called]
            return self.run(node, _bound(node, ordered, given), depth + 1)
        owner, _, method = called.rpartition(".")
        if owner in ("cls", "TransformerConfig"):
            home = self.homes.get("TransformerConfig", self)
            node = home.classes["TransformerConfig"].get(method)  # type: ignore[assignment]
            if node is not None:
                return home.run(node, _bound(node, [UNKNOWN, *ordered], given), depth + 1)
        if owner == "cookbook" and "cookbook" in self.homes and method in self.homes["cookbook"].functions:
            home = self.homes["cookbook"]
            return home.run(home.functions[method], _bound(home.functions[method], ordered, given), depth + 1)
        if called == "cls":
            return {CALLED: "TransformerConfig", **given}
        if owner.startswith("Transformer") and method in ("zig_zag", "llama3", "ulysses"):
            return {
                CALLED: owner,
                "style": method,
                **dict(zip(("degree", "head_stride"), ordered, strict=False)),
                **given,
            }
        return {CALLED: called, **given}


def _bound(node: ast.FunctionDef, ordered: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The names that a function begins with: its arguments, its defaults, and the rest as ``kwargs``."""
    parameters = [each.arg for each in node.args.args]
    only = [each.arg for each in node.args.kwonlyargs]
    names: dict[str, Any] = {}
    for name, default in zip(parameters[::-1], node.args.defaults[::-1], strict=False):
        names[name] = _literal(default)
    for name, value in zip(only, node.args.kw_defaults, strict=True):
        if value is not None:
            names[name] = _literal(value)
    names |= dict(zip(parameters, ordered, strict=False))
    names |= {name: value for name, value in given.items() if name in (*parameters, *only)}
    names["kwargs"] = {name: value for name, value in given.items() if name not in (*parameters, *only)}
    return names


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    return node.attr if isinstance(node, ast.Attribute) else UNKNOWN


def row_of(script: Script, source: str) -> dict[str, Any] | None:
    """A row of the table; None where the file builds no training."""
    sizes = _stated_sizes(script)
    tokenizer = {CALLED: "TokenizerConfig.dolma2"}
    common = {**sizes, "launch": None, "tokenizer": tokenizer}
    found: dict[str, Any] = {}
    if "build_model_config" in script.functions:
        for name, key in (("build_model_config", "model"), ("build_train_module_config", "train_module")):
            node = script.functions.get(name)
            if node is not None:
                found[key] = script.run(node, {node.args.args[0].arg: common})
    elif (node := script.functions.get("build_config") or script.functions.get("build_experiment_config")) is not None:
        names: dict[str, Any] = {"opts": {"sequence_length": None}}
        script._follow(node.body, names, 0)
        whole = names.get("config")  # Some hand all parts to one call.
        parts = {**(whole if isinstance(whole, dict) else {}), **names}
        found = {
            "model": names.get("model_config", parts.get("model")),
            "train_module": names.get("train_module_config", parts.get("train_module")),
        }
        loader = names.get("data_loader_config", parts.get("data_loader"))
        sizes.setdefault("global_batch_size", loader.get("global_batch_size") if isinstance(loader, dict) else None)
        dataset = names.get("dataset_config", parts.get("dataset"))
        if isinstance(dataset, dict):
            sizes.setdefault("max_sequence_length", dataset.get("sequence_length"))
    if not isinstance(found.get("train_module"), dict):
        return None
    row: dict[str, Any] = {"source": source}
    model = found.get("model")
    if not isinstance(model, dict) or "d_model" not in model or _unknown_in(model):
        row["reason"] = "its model is put together by functions whose result the text does not say"
    row |= {key: plain(value) for key, value in found.items() if isinstance(value, dict)}
    row |= {key: value for key, value in sizes.items() if isinstance(value, int)}
    return row


def _unknown_in(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_unknown_in(item) for name, item in value.items() if name not in SIZELESS)
    return any(map(_unknown_in, value)) if isinstance(value, list) else value is UNKNOWN


def _stated_sizes(script: Script) -> dict[str, Any]:
    """Batch and length that the script hands to ``build_config``, or holds as constants."""
    sizes: dict[str, Any] = {}
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Call):
            for each in node.keywords:
                if each.arg in ("global_batch_size", "max_sequence_length", "num_nodes"):
                    value = script.value(each.value, {}, 0)
                    if isinstance(value, int):
                        sizes.setdefault(each.arg, value)
    for constant, name in (
        ("GLOBAL_BATCH_SIZE", "global_batch_size"),
        ("SEQUENCE_LENGTH", "max_sequence_length"),
        ("DEFAULT_SEQUENCE_LENGTH", "max_sequence_length"),
        ("CONTEXT_LENGTH", "max_sequence_length"),
    ):
        value = script.constants.get(constant)
        if isinstance(value, int):
            sizes.setdefault(name, value)
    return sizes


def table(root: Path, commit: str) -> dict[str, Any]:
    """The whole table, by the path below ``src/scripts``."""
    homes = {"TransformerConfig": Script(root / MODELS)}
    homes["cookbook"] = Script(root / COOKBOOK, homes)
    rows = {}
    for folder in ("train", "official"):
        for file in sorted((root / "src" / "scripts" / folder).glob("**/*.py")):
            row = row_of(Script(file, homes), file.relative_to(root).as_posix())
            if row is not None:
                rows[file.relative_to(root / "src" / "scripts").as_posix()] = row
    return {"commit": commit, "scripts": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("commit")
    options = parser.parse_args(arguments)
    data = table(options.checkout, options.commit)
    print("# OLMo-core's training scripts: written by `python -m benchmarks.olmo_scripts`.")
    print(f"commit: {data['commit']}\nscripts:")
    for name, row in data["scripts"].items():
        text = yaml.safe_dump(row, default_flow_style=True, sort_keys=False, width=10**6).strip()
        print(f"  {name}: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
