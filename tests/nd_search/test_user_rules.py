"""A user's rule file may import Taylor by its name or by its packages' former names, and nothing else changes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taylor.nd_search.rules import Rule
from taylor.nd_search.user_rules import load_user_rules


def rules_from(folder: Path, text: str) -> tuple[Rule, ...]:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(text)
    return load_user_rules(folder)


@pytest.mark.parametrize(
    "imports",
    [
        "from taylor.nd_search.rules import Rule",
        "from nd_search.rules import Rule",
        "from nd_search import rules\nRule = rules.Rule",
        "import nd_search.rules\nRule = nd_search.rules.Rule",
        "import nd_search.rules as rules\nRule = rules.Rule",
    ],
)
def test_the_rule_class_is_the_same_by_every_name(tmp_path: Path, imports: str) -> None:
    (rule,) = rules_from(tmp_path, f"{imports}\nRULES = [Rule('even-pp', 'pp is even', lambda t, c: t.pp % 2 == 0)]")
    assert type(rule) is Rule


def test_former_names_hold_inside_functions_and_give_the_same_modules(tmp_path: Path) -> None:
    text = """
from nd_search.rules import Rule
import cost_model.job.strategy

def keep(table, context):
    from register.model import ModelSpec
    from pipeline import plan
    return ModelSpec, plan, cost_model.job.strategy.Strategy

RULES = [Rule("a", "b", keep)]
"""
    import taylor.pipeline.plan
    from taylor.cost_model.job.strategy import Strategy
    from taylor.register.model import ModelSpec

    (rule,) = rules_from(tmp_path, text)
    assert rule.keep(None, None) == (ModelSpec, taylor.pipeline.plan, Strategy)  # type: ignore[arg-type]


@pytest.fixture
def forgotten_imports() -> Iterator[set[str]]:
    """The modules known before a test; those it imports are forgotten after it."""
    before = set(sys.modules)
    yield before
    for name in set(sys.modules) - before:
        if not name.startswith("taylor"):
            del sys.modules[name]


def test_former_names_are_known_to_the_users_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten_imports: set[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    for name in ("report", "parsers"):
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
        (tmp_path / "elsewhere" / name / "__init__.py").write_text("whose = 'the user'\n")
    (tmp_path / "elsewhere" / "report" / "figures.py").write_text("whose = 'the user'\n")
    text = """
from parsers.tables.ratios import MAX_RATIO
from nd_search.rules import Rule
from report.figures import whose
RULES = [Rule(whose, "b", lambda t, c: t.pp > 0)]
"""
    (rule,) = rules_from(tmp_path / "rules", text)
    assert rule.name == "the user"
    assert {"nd_search", "parsers"}.isdisjoint(set(sys.modules) - forgotten_imports)
    import parsers  # type: ignore[import-not-found]

    assert parsers.whose == "the user"
