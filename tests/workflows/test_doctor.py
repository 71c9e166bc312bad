"""`taylor doctor` says what is here, what is not, and what would bring it."""

from __future__ import annotations

import json
import re
from importlib import metadata

import pytest

from taylor.command_lines import doctor
from taylor.workflows.showing import doctor as diagnosis
from tests.conftest import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def as_json(capsys: pytest.CaptureFixture[str]) -> dict:
    doctor.run(["--json"])
    return json.loads(capsys.readouterr().out)


def test_the_packages_and_versions_are_those_that_python_imports(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys)
    import numpy

    versions = {package["name"]: package["version"] for package in found["packages"]}
    assert versions["numpy"] == numpy.__version__ and "highspy" in versions and "pytest" not in versions
    assert next(iter(found)) == "schema" and found["schema"] == "taylor.doctor/1"


def test_every_extra_of_the_project_is_explained_and_no_other() -> None:
    section = PROJECT.split("[project.optional-dependencies]")[1].split("\n[")[0]
    assert set(re.findall(r"^(\w+) = \[", section, re.MULTILINE)) == set(diagnosis.EXTRAS)


def test_an_extra_that_is_not_here_names_what_it_lacks_and_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "uvicorn":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    [serve] = [extra for extra in as_json(capsys)["extras"] if extra["name"] == "serve"]
    assert serve["missing"] == ["uvicorn"]
    doctor.run([])
    assert "serve: `pip install 'taylor-parallel[serve]'` adds `taylor serve`" in capsys.readouterr().out


def test_an_extra_made_of_another_has_its_packages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = ['dask>=1; extra == "cluster"', 'taylor-parallel[cluster]; extra == "kubernetes"', "numpy>=1",
              'tomli>=2; python_version < "3.0"', 'dask-kubernetes; extra == "kubernetes"']  # fmt: skip
    monkeypatch.setattr(metadata, "requires", lambda name: stated)
    assert diagnosis._requirements() == (["numpy"], {"cluster": ["dask"], "kubernetes": ["dask", "dask-kubernetes"]})


def test_a_checkout_that_is_not_installed_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    monkeypatch.setattr(metadata, "version", absent)
    doctor.run([])
    text = capsys.readouterr().out
    assert ", not installed" in text and "pip install -e ." in text


def test_highs_and_cbc_are_found_here_and_a_solver_that_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    states = {solver["name"]: solver["state"] for solver in as_json(capsys)["solvers"]}
    assert states["HiGHS"] == states["CBC"] == "found" and "glpk" in states


def test_kernels_that_are_compiled_nowhere_say_how_they_come(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "are_kept", lambda kernels: False)
    doctor.run([])
    assert "`taylor warm` compiles them" in capsys.readouterr().out
