"""The audit of dependencies: licences as distributions state them, advisories of a snapshot, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import audit
from benchmarks.packages import least_versions
from tests.conftest import ROOT

ADVISORY = """\
id: PYSEC-2026-1
modified: {modified}
details: A crafted file runs code.
{more}affected:
- package: {{name: one, ecosystem: PyPI}}
  ranges:
  - type: ECOSYSTEM
    events: [{{introduced: "1.0"}}, {{fixed: "1.2"}}, {{introduced: "2.0"}}, {{last_affected: "2.1"}}]
  versions: ["0.9rc1"]
"""


def snapshot_of(folder: Path, more: str = "") -> Path:
    place = folder / "vulns" / "one"
    place.mkdir(parents=True, exist_ok=True)
    (place / "PYSEC-2026-1.yaml").write_text(ADVISORY.format(modified="2026-03-04T00:00:00Z", more=more))
    return folder


@pytest.mark.parametrize(
    ("version", "named"),
    [("0.9", False), ("0.9rc1", True), ("1.0", True), ("1.1.9", True), ("1.2", False), ("2.0", True), ("2.1", True),
     ("2.1.1", False)],
)  # fmt: skip
def test_an_advisory_names_the_versions_of_its_list_and_ranges(tmp_path, version, named):
    found = list(audit.advisories(snapshot_of(tmp_path), {"one": version, "other": "1.0"}))
    assert [each.name for each in found] == ["PYSEC-2026-1"] * named
    assert not list(audit.advisories(snapshot_of(tmp_path, "withdrawn: 2026-04-01\n"), {"one": version}))


def test_the_date_of_a_snapshot_is_that_of_its_newest_advisory(tmp_path):
    assert audit.snapshot(snapshot_of(tmp_path)) == "2026-03-04" and audit.snapshot(tmp_path / "none") == ""


def test_without_a_snapshot_the_vulnerabilities_are_said_not_to_be_known(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["audit"])
    assert audit.main() == 0
    assert "vulnerabilities: not known" in capsys.readouterr().out


def test_a_locked_version_with_an_advisory_ends_the_audit_with_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["audit", "--advisories", str(snapshot_of(tmp_path))])
    monkeypatch.setattr(audit, "locked", lambda text: {"one": "1.1"})
    assert audit.main() == 1
    assert "one 1.1: PYSEC-2026-1 A crafted file runs code." in capsys.readouterr().out


def test_versions_are_those_of_the_lock_and_the_least_that_the_project_allows():
    pinned = audit.locked((ROOT / "requirements-dev.txt").read_text(encoding="utf-8"))
    assert pinned["numpy"] and pinned["ruamel-yaml"] and len(pinned) > 100
    project = {
        "dependencies": ["numpy>=1.24", "highspy>=1.15.1,!=1.16.0", "tomli>=2.0; python_version < '3.11'", "any"],
        "optional-dependencies": {name: [] for name in audit.EXTRAS if name} | {"mcp": ["mcp>=2.0"]},
    }
    own = {"numpy": "1.24", "highspy": "1.15.1", "tomli": "2.0"}
    assert audit.least(project) == own | {"mcp": "2.0"} and audit.least(project, ("",)) == own
    assert least_versions(project) == "numpy==1.24\nhighspy==1.15.1\ntomli==2.0\n"


@pytest.mark.parametrize(
    ("licence", "kind"),
    [("BSD-3-Clause", "permissive"), ("MIT License", "permissive"), ("LGPL-3.0-only", "weak copyleft"),
     ("GNU General Public License v3 (GPLv3)", "other"), ("", "other"), ("Proprietary", "other")],
)  # fmt: skip
def test_a_licence_is_permissive_a_weak_copyleft_or_another(licence, kind):
    assert audit.kind_of(licence) == kind


def test_all_that_a_user_installs_states_a_licence_that_taylor_may_be_shipped_beside():
    found = audit.installed("taylor-parallel")
    assert {"numpy", "highspy", "pyyaml"} <= set(found)
    other = {
        name: audit.licence_of(each) for name, each in found.items() if audit.kind_of(audit.licence_of(each)) == "other"
    }
    assert not other


def test_a_file_of_another_author_is_shipped_beside_its_licence():
    foreign = [file for file in ROOT.glob("*/assets/*.min.*")]
    assert foreign
    for file in foreign:
        licence = file.with_name(file.name.partition(".")[0] + ".LICENSE.txt").read_text(encoding="utf-8")
        assert "Permission is hereby granted" in licence or "Redistribution and use" in licence
