"""Small faults that a program could have: their places in a source file, and the file with one put in."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMBINED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutant:
    """One fault in one file.

    Parameters
    ----------
    file : str
        Path in the repository.
    line : int
        From 1.
    start, end : int
        The bytes that are replaced.
    old, new : str
        The present code, and its replacement.
    text : str
        The line as it is, without its indentation.
    """

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} `{self.text}`: `{self.old}` -> `{self.new}`"

    def put_in(self, source: bytes) -> bytes:
        """The file's bytes with the fault."""
        assert source[self.start : self.end].decode() == self.old
        return source[: self.start] + self.new.encode() + source[self.end :]

    def line_of(self, root: Path) -> str:
        """Its line with the fault, without indentation."""
        return self.put_in((root / self.file).read_bytes()).splitlines()[self.line - 1].decode().strip()


def _other(node: ast.AST) -> ast.expr | None:
    """The expression with one thing in it exchanged, None where nothing can be."""
    if isinstance(node, ast.Compare):
        operator = _COMPARED.get(type(node.ops[0]))
        return operator if operator is None else ast.Compare(node.left, [operator(), *node.ops[1:]], node.comparators)
    if isinstance(node, ast.BinOp):
        exchanged = _COMBINED.get(type(node.op))
        texts = any(isinstance(side, (ast.JoinedStr, ast.List, ast.Tuple)) or _is_text(side) for side in _sides(node))
        return None if exchanged is None or texts else ast.BinOp(node.left, exchanged(), node.right)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        return node.operand
    if isinstance(node, ast.IfExp):
        return ast.IfExp(node.test, node.orelse, node.body)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return ast.Constant(not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return ast.Constant(node.value + 1)
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name) and function.id in _CALLED:
            return ast.Call(ast.Name(_CALLED[function.id]), node.args, node.keywords)
        if isinstance(function, ast.Attribute) and function.attr in _CALLED:
            return ast.Call(ast.Attribute(function.value, _CALLED[function.attr]), node.args, node.keywords)
    return None


def _sides(node: ast.BinOp) -> tuple[ast.expr, ast.expr]:
    return node.left, node.right


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _judged(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below a node that a figure or a decision may rest on.

    Left out are annotations, decorators, what an error, a log line or a printed object says, texts, what type checkers
    alone read, and what the program asserts of itself (``assert``, ``strict`` of ``zip``).
    """
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)):
        return
    if isinstance(node, ast.keyword) and node.arg == "repr":
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[0] in ("log", "InputError", "ValueError"):
        return
    yield node
    asserted = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip"
    for name, value in ast.iter_fields(node):
        if asserted and name == "keywords":
            continue
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _judged(child)


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """Every mutant of a file, from the first line to the last."""
    source = (root / file).read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found = []
    for node in _judged(ast.parse(source)):
        changes: list[tuple[ast.expr, str]] = []
        if isinstance(node, ast.expr) and (other := _other(node)) is not None:
            changes.append((node, f"({ast.unparse(ast.fix_missing_locations(other))})"))
        if isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            changes.append((node.test, f"(not ({ast.unparse(node.test)}))"))
        for part, new in changes:
            assert part.end_lineno is not None and part.end_col_offset is not None
            start, end = starts[part.lineno - 1] + part.col_offset, starts[part.end_lineno - 1] + part.end_col_offset
            old, text = source[start:end].decode(), lines[part.lineno - 1].decode().strip()
            found.append(Mutant(file, part.lineno, start, end, old, new, text))
    return found


def sample(root: Path, files: Sequence[str], count: int, seed: str) -> list[Mutant]:
    """Mutants drawn from files, every possible one as likely as any other."""
    every = [mutant for file in sorted(files) for mutant in mutants_of(root, file)]
    return random.Random(seed).sample(every, min(count, len(every)))
