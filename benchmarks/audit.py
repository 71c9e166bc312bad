"""Licences of all that is installed with Taylor, and known vulnerabilities in a stated snapshot of advisories.

    python -m benchmarks.audit [--advisories FOLDER]

FOLDER is a checkout of pypa/advisory-database, which is read without a network; the newest date in it is that of the
snapshot. Without one the vulnerabilities are said not to be known. Audited are the locked versions
(requirements-dev.txt) and the least versions that pyproject.toml allows. Licences are those that the installed
distributions state.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("", "serve", "mcp", "cluster", "postgres")
"""What a user installs; the other extras are for developers, or frameworks that bring their own terms."""
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|Unlicense|Zlib|0BSD|MPL|HPND|EPL)\b", re.I
)
WEAK_COPYLEFT = re.compile(r"\bL(esser )?GPL|Lesser General Public", re.I)
_LOCKED = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True)
class Advisory:
    """A known vulnerability of a version."""

    package: str
    version: str
    name: str
    details: str


def locked(text: str) -> dict[str, str]:
    """Versions by package of a file of pinned requirements."""
    return {canonicalize_name(name): version for name, version in _LOCKED.findall(text)}


def least(project: Mapping[str, Any], extras: Sequence[str] = EXTRAS) -> dict[str, str]:
    """Least versions by package that a pyproject.toml allows, the tools of developers apart."""
    optional = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in extras if name for line in optional[name])]
    found: dict[str, str] = {}
    for requirement in map(Requirement, lines):
        bounds = [each.version for each in requirement.specifier if each.operator in (">=", "==", "~=")]
        if bounds:
            found[canonicalize_name(requirement.name)] = max(bounds, key=Version)
    return found


def advisories(folder: Path, versions: Mapping[str, str]) -> Iterator[Advisory]:
    """Advisories of a snapshot that name one of some versions; those that were withdrawn are left out."""
    for package, version in versions.items():
        for file in sorted((folder / "vulns" / package).glob("*.yaml")):
            data = yaml.safe_load(file.read_text(encoding="utf-8"))
            if data.get("withdrawn"):
                continue
            if any(is_affected(version, each) for each in data.get("affected", ())):
                text = str(data.get("summary") or data.get("details") or "").strip().splitlines()
                yield Advisory(package, version, str(data["id"]), text[0][:100] if text else "")


def is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    """Return whether an entry of an advisory names a version, in its list or in a range of it."""
    if version in map(str, affected.get("versions", ())):
        return True
    return any(
        _in_range(Version(version), each["events"])
        for each in affected.get("ranges", ())
        if each.get("type") == "ECOSYSTEM"
    )


def _in_range(version: Version, events: list[Mapping[str, str]]) -> bool:
    inside = False
    for event in events:
        ((kind, text),) = event.items()
        try:
            reached = text == "0" or version >= Version(str(text))
        except InvalidVersion:
            continue
        if kind == "introduced" and reached:
            inside = True
        elif (kind == "fixed" and reached) or (kind == "last_affected" and reached and version != Version(str(text))):
            inside = False
    return inside


def snapshot(folder: Path) -> str:
    """The newest date on which an advisory of a snapshot was changed."""
    stamp = re.compile(r"^modified: ['\"]?(\d{4}-\d\d-\d\d)", re.MULTILINE)
    found = (stamp.search(file.read_text(encoding="utf-8")) for file in (folder / "vulns").glob("*/*.yaml"))
    return max((match[1] for match in found if match), default="")


def installed(name: str, extras: tuple[str, ...] = EXTRAS) -> dict[str, metadata.Distribution]:
    """All installed distributions that one rests on, with some of its extras, by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(name, extras)]
    while waiting:
        current, wanted = waiting.pop()
        try:
            distribution = metadata.distribution(current)
        except metadata.PackageNotFoundError:
            continue
        if current != name:
            found[canonicalize_name(current)] = distribution
        for line in distribution.requires or ():
            requirement = Requirement(line)
            needed = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in wanted
            )
            if needed and canonicalize_name(requirement.name) not in found:
                waiting.append((requirement.name, ("", *requirement.extras)))
    return dict(sorted(found.items()))


def licence_of(distribution: metadata.Distribution) -> str:
    """The licence that a distribution states: its expression, its classifiers, or the first line of its field."""
    data: Any = distribution.metadata  # an email message, of which the stubs know a part
    stated = data.get("License-Expression") or ""
    classifiers = [
        line.rpartition(" :: ")[2] for line in data.get_all("Classifier") or () if line.startswith("License")
    ]
    return stated or ", ".join(classifiers) or (data.get("License") or "").strip().partition("\n")[0]


def kind_of(licence: str) -> str:
    """``permissive``, ``weak copyleft`` (used as a library, as its licence allows), or ``other``."""
    if WEAK_COPYLEFT.search(licence):
        return "weak copyleft"
    return "permissive" if PERMISSIVE.search(licence) else "other"


def main() -> int:
    """Command line; exit code 1 when a licence is of another kind, or a version has an advisory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--advisories", type=Path, metavar="FOLDER", help="checkout of pypa/advisory-database")
    arguments = parser.parse_args()
    licences = {name: licence_of(each) for name, each in installed("taylor-parallel").items()}
    kinds = {name: kind_of(licence) for name, licence in licences.items()}
    for name, kind in kinds.items():
        if kind != "permissive":
            print(f"{name}: {kind} ({licences[name] or 'states none'})")
    print(f"licences: {len(licences)} distributions, {sum(kind == 'permissive' for kind in kinds.values())} permissive")
    found: list[Advisory] = []
    if arguments.advisories is None:
        print("vulnerabilities: not known, for no snapshot of advisories was given (--advisories)")
    else:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for what, versions in (
            ("locked", locked((ROOT / "requirements-dev.txt").read_text(encoding="utf-8"))),
            ("least allowed", least(project)),
        ):
            here = list(advisories(arguments.advisories, versions))
            print(
                f"vulnerabilities: {len(here)} in {len(versions)} {what} versions, advisories up to "
                f"{snapshot(arguments.advisories)}"
            )
            for each in here:
                print(f"  {each.package} {each.version}: {each.name} {each.details}")
            found += here
    return int(bool(found) or "other" in kinds.values())


if __name__ == "__main__":
    sys.exit(main())
