"""What a visitor of the repository finds: workflows, issue forms, conduct, security."""

from __future__ import annotations

import re

import pytest
import yaml

from benchmarks.pythons import SUPPORTED
from tests.conftest import ROOT

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("form", [form for form in FORMS if form.name != "config.yml"], ids=lambda form: form.stem)
def test_every_issue_form_asks_for_the_installation(form) -> None:
    stated = yaml.safe_load(form.read_text(encoding="utf-8"))
    fields = {field.get("id"): field["attributes"] for field in stated["body"]}
    assert "taylor doctor --json" in fields["doctor"]["description"] and {"name", "description"} <= set(stated)


def test_the_workflow_lints_tests_on_three_pythons_builds_packages_and_the_site() -> None:
    jobs = WORKFLOW["jobs"]
    assert {"lint", "tests", "wheel", "docs"} <= set(jobs)
    tried = jobs["tests"]["strategy"]["matrix"]["python"]
    assert len(tried) == 3 and {SUPPORTED[0], SUPPORTED[-1]} < set(tried) <= set(SUPPORTED)
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_every_step_of_the_workflow_is_a_target_or_a_tool_that_is_there() -> None:
    steps = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    made = [re.match(r"make ([a-z-]+)", step) for step in steps]
    assert {found[1] for found in made if found} <= TARGETS
    assert {"make lint", "make docs", "make gate"} <= set(steps)
    assert not [step for step in steps if "${{ github" in step]  # no text of a pull request in a shell


def test_actions_are_pinned_to_a_release() -> None:
    uses = [step["uses"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in uses)


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE"])
def test_the_usual_pages_are_there(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8")) > 200
