"""What runs code, starts a shell or undoes pickles is not in the product: input cannot ask for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.conftest import ROOT

CALLS = {"eval", "exec", "compile", "os.system", "os.popen", "subprocess.getoutput", "yaml.unsafe_load", "torch.load"}
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
SUSPECT = re.compile("|".join((*map(re.escape, CALLS), *MODULES, "shell=", r"yaml\.load\(")))
SOURCES = [
    (path, text)
    for room in sorted(ROOT.iterdir())
    if (room / "__init__.py").is_file() and room.name not in ("tests", "benchmarks")
    for path in sorted(room.rglob("*.py"))
    if SUSPECT.search(text := path.read_text(encoding="utf-8"))
]
"""Only what names such a thing at all is parsed."""


def said(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"import {name}" for name in names if name.split(".")[0] in MODULES)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in CALLS:
                yield called
            if any(word.arg == "shell" and ast.unparse(word.value) == "True" for word in node.keywords):
                yield f"{called}(shell=True)"


def test_no_input_is_run_unpickled_or_handed_to_a_shell() -> None:
    assert {f"{path.relative_to(ROOT)}: {what}" for path, text in SOURCES for what in said(text)} == set()


def test_yaml_is_read_by_its_safe_loaders() -> None:
    loading = [(path, text) for path, text in SOURCES if "yaml.load(" in text]
    assert loading and all("SafeLoader" in text or "SAFE_LOADER" in text for _, text in loading), [
        str(path) for path, _ in loading
    ]
