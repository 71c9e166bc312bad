"""The version stands in three places that agree."""

from pathlib import Path

import yaml

import taylor

ROOT = Path(__file__).resolve().parents[2]


def test_the_citation_names_the_version_of_the_package():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == taylor.__version__


def test_the_changelog_has_a_section_of_the_version():
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert f"## {taylor.__version__}" in headings
