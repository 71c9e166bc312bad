"""Table of torchtitan's registered configurations, read off their Python as syntax trees; nothing of it is run.

Run from the repository's root with a checkout of torchtitan and its commit::

    python -m benchmarks.titan_registry ../torchtitan b5bcd76c > parsers/torchtitan/registry.yaml

A configuration is a function without arguments that returns a ``Trainer.Config`` (torchtitan/config/README.md). What is
kept of it: its flavour and the options of its model, and every literal setting of the sections that a plan depends on.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

SECTIONS = ("training", "parallelism", "compile")
FOLDERS = ("torchtitan/models", "torchtitan_recipes")
POLICIES = {"SelectiveAC": "selective", "FullAC": "full", "MemoryBudgetAC": "memory-budget"}
_FUNCTION = "="
"""Key under which a call keeps the name of what it calls."""


class _Unknown:
    """A value that only a running Python knows."""


UNKNOWN = _Unknown()


def assign(target: ast.expr, value: Any, names: dict[str, Any]) -> None:
    """Set a name, or an attribute of one whose value is known as a mapping."""
    if isinstance(target, ast.Name):
        names[target.id] = value
        return
    path: list[str] = []
    while isinstance(target, ast.Attribute):
        path.insert(0, target.attr)
        target = target.value
    place = names.get(target.id) if isinstance(target, ast.Name) else None
    for name in path[:-1]:
        if not isinstance(place, dict):
            return
        place = place.setdefault(name, {})
    if isinstance(place, dict):
        place[path[-1]] = value


class Module:
    """One file of the checkout: its functions, and what its names import."""

    def __init__(self, root: Path, file: Path, known: dict[Path, Module]) -> None:
        self.root, self.file, self.known = root, file, known
        known[file] = self
        tree = ast.parse(file.read_text(encoding="utf-8"))
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.imports: dict[str, tuple[Path, str]] = {}
        for node in ast.walk(tree):  # Some functions import what they begin with.
            if isinstance(node, ast.ImportFrom):
                self._take(node)

    def _take(self, node: ast.ImportFrom) -> None:
        base = self.file.parent if node.level else self.root
        for _ in range(max(0, node.level - 1)):
            base = base.parent
        place = base.joinpath(*(node.module or "").split(".")) if node.module else base
        for name in node.names:
            for file in (place.with_suffix(".py"), place / "__init__.py"):
                if file.is_file():
                    self.imports[name.asname or name.name] = file, name.name
                    break

    def function(self, name: str) -> tuple[Module, ast.FunctionDef] | None:
        """A function of this file, or of one that it imports from."""
        if name in self.functions:
            return self, self.functions[name]
        if name not in self.imports:
            return None
        file, original = self.imports[name]
        return (self.known.get(file) or Module(self.root, file, self.known)).function(original)

    def run(self, node: ast.FunctionDef, arguments: Mapping[str, Any], depth: int = 0) -> Any:
        """What the function returns of these arguments, as far as its text says."""
        if depth > 12:
            return UNKNOWN
        names = dict(arguments)
        return self._follow(node.body, names, depth)

    def _follow(self, body: Sequence[ast.stmt], names: dict[str, Any], depth: int) -> Any:
        for statement in body:
            if isinstance(statement, ast.Return):
                return UNKNOWN if statement.value is None else self.value(statement.value, names, depth)
            if isinstance(statement, ast.Assign):
                value = self.value(statement.value, names, depth)
                for target in statement.targets:
                    assign(target, value, names)
            elif isinstance(statement, ast.Expr):
                self.value(statement.value, names, depth)
            elif isinstance(statement, ast.If):
                test = self.value(statement.test, names, depth)
                if test in (True, False):
                    returned = self._follow(statement.body if test else statement.orelse, names, depth)
                    if returned is not None:
                        return returned
        return None

    def value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        """The value of an expression; `UNKNOWN` where the text does not say it."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names.get(node.id, UNKNOWN)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(each, names, depth) for each in node.elts]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand, names, depth)
            return -inner if isinstance(inner, (int, float)) else UNKNOWN
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            pair = [self.value(each, names, depth) for each in (node.left, node.right)]
            return pair[0] * pair[1] if all(isinstance(each, int) for each in pair) else UNKNOWN
        if isinstance(node, ast.Attribute):
            inner = self.value(node.value, names, depth)
            return inner.get(node.attr, UNKNOWN) if isinstance(inner, dict) else UNKNOWN
        return self._called(node, names, depth) if isinstance(node, ast.Call) else UNKNOWN

    def _called(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        called = ast.unparse(node.func)
        given = {each.arg: self.value(each.value, names, depth) for each in node.keywords if each.arg}
        ordered = [self.value(each, names, depth) for each in node.args]
        if called == "model_registry":
            return {_FUNCTION: called, "flavor": ordered[0] if ordered else given.pop("flavor", UNKNOWN), **given}
        found = self.function(called) if called.isidentifier() else None
        # A configuration, or a helper that changes the one it gets.
        if found is not None and ("config" in called or called.startswith(("_", "enable")) or "model" in called):
            module, function = found
            parameters = [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]
            bound = {**dict(zip(parameters, ordered, strict=False)), **given}
            return module.run(function, bound, depth + 1)
        if found is not None and not function_arguments(found[1]):
            return found[0].run(found[1], {}, depth + 1)
        return {_FUNCTION: called, **given}


def function_arguments(node: ast.FunctionDef) -> list[str]:
    """The arguments that a function cannot be called without."""
    required = node.args.args[: len(node.args.args) - len(node.args.defaults)]
    return [each.arg for each in required]


def plain(value: Any) -> Any:
    """Plain data without what is not known, and without the names of what builds it."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not UNKNOWN and key != _FUNCTION}
    if isinstance(value, list):
        return [plain(item) for item in value if item is not UNKNOWN]
    return value


def entry(name: str, node: ast.FunctionDef, config: Mapping[str, Any], source: str) -> dict[str, Any] | None:
    """A row of the table; None where the function returns no training's configuration."""
    spec = config.get("model_spec")
    if not isinstance(spec, Mapping) or not isinstance(spec.get("flavor"), str):
        return None
    row: dict[str, Any] = {"source": f"{source}:{node.lineno}", "flavor": spec["flavor"]}
    options = {key: value for key, value in plain(spec).items() if key not in ("flavor", "converters")}
    if options:
        row["model"] = options
    converters = spec.get("converters")
    if isinstance(converters, list):
        row["converters"] = [
            {"name": str(each.get(_FUNCTION, "")).removesuffix(".Config"), **plain(each)}
            for each in converters
            if isinstance(each, Mapping)
        ]
    for section in SECTIONS:
        settings = plain(config.get(section, {}))
        if isinstance(settings, Mapping) and settings:
            row[section] = dict(settings)
    policy = config.get("activation_checkpoint", {})
    if policy is None:
        row["recompute"] = "none"
    elif isinstance(policy, Mapping) and policy:
        row["recompute"] = POLICIES.get(str(policy.get(_FUNCTION, "")).split(".")[0], "other")
    loss = config.get("loss")
    row["loss"] = str(loss.get(_FUNCTION, "")).split(".")[0] if isinstance(loss, Mapping) else ""
    row["optimizers"] = sorted(set(named(config.get("optimizer"), "optimizer_name")))
    return row


def named(value: Any, key: str) -> Iterator[str]:
    """Every text that stands under a key, however deep."""
    if isinstance(value, Mapping):
        if isinstance(value.get(key), str):
            yield value[key]
        for item in value.values():
            yield from named(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from named(item, key)


def modules_of(root: Path) -> Iterator[tuple[str, Path]]:
    """The names that ``--module`` takes, and their files."""
    for file in sorted(root.glob("torchtitan/models/*/config_registry.py")):
        yield file.parent.name, file
    for file in sorted(root.glob("torchtitan_recipes/**/*.py")):
        if file.name != "__init__.py":
            yield ".".join(file.relative_to(root).with_suffix("").parts), file


def table(root: Path, commit: str) -> dict[str, Any]:
    """The whole table."""
    known: dict[Path, Module] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, file in modules_of(root):
        module = known.get(file) or Module(root, file, known)
        found: dict[str, Any] = {}
        for called, node in module.functions.items():
            if called.startswith("_") or function_arguments(node):
                continue
            config = module.run(node, {})
            if isinstance(config, Mapping):
                row = entry(called, node, config, file.relative_to(root).as_posix())
                if row is not None:
                    found[called] = {"family": _family(module, node, file), **row}
        if found:
            rows[name] = found
    return {"commit": commit, "modules": rows}


def _family(module: Module, node: ast.FunctionDef, file: Path) -> str:
    """The model whose flavours the function's configuration names: of its file, or of the one it begins with."""
    if file.name == "config_registry.py":
        return file.parent.name
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
            found = module.function(inner.func.id)
            if found is not None and found[1] is not node:
                if found[0].file.name == "config_registry.py":
                    return found[0].file.parent.name
                if (deeper := _family(found[0], found[1], found[0].file)) != "":
                    return deeper
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("commit")
    options = parser.parse_args(arguments)
    data = table(options.checkout, options.commit)
    print("# torchtitan's registered configurations: written by `python -m benchmarks.titan_registry`.")
    print(f"commit: {data['commit']}\nmodules:")
    for module, rows in data["modules"].items():
        print(f"  {module}:")
        for name, row in rows.items():
            text = yaml.safe_dump(row, default_flow_style=True, sort_keys=False, width=10**6).strip()
            print(f"    {name}: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
