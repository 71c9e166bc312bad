"""The documentation site has every page, leads nowhere else, and its gallery's commands run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from benchmarks import gallery, site_hooks
from benchmarks.site_check import problems
from tests.conftest import ROOT


class _Loader(yaml.SafeLoader):
    """mkdocs' own tags read as plain data."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def named_pages(nav: object) -> list[str]:
    """Pages that the navigation names."""
    if isinstance(nav, str):
        return [nav]
    return [page for each in (nav.values() if isinstance(nav, dict) else nav) for page in named_pages(each)]


def test_the_navigation_names_every_page_once() -> None:
    site = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    named = named_pages(site["nav"])
    assert sorted(named) == sorted(written | set(site_hooks.PAGES.values())), "name the page under nav in mkdocs.yml"
    assert site["strict"] is True and site["theme"]["font"] is False


def test_both_languages_have_the_same_tasks() -> None:
    tasks = {path.name for path in (ROOT / "docs" / "tasks").glob("*.md")}
    assert tasks <= {path.name for path in (ROOT / "docs" / "zh").glob("*.md")}


@pytest.mark.parametrize(
    "page, text, expected",
    [
        ("index.md", "[a](docs/tasks/solve.md#x)", "[a](tasks/solve.md#x)"),
        ("index.md", "![a](docs/pictures/report.png)", "![a](pictures/report.png)"),
        ("index.md", "[a](README.zh-CN.md)", "[a](zh/index.md)"),
        ("zh/index.md", "[a](docs/zh/solve.md) [b](docs/api.md)", "[a](solve.md) [b](../api.md)"),
        ("register.md", "[a](../examples/plugin_launcher/README.md)", "[a](plugin_template.md)"),
        ("tasks/solve.md", "[a](../register.md) [b](#own)", "[a](../register.md) [b](#own)"),
        ("changes.md", "[a](https://semver.org) `[c](Makefile)`", "[a](https://semver.org) `[c](Makefile)`"),
        ("index.md", "[the rules](Makefile)", "the rules"),
        ("index.md", "[a](docs/absent.md)", "[a](absent.md)"),
        ("index.md", "[a](absent.txt)", "[a](absent.txt)"),
    ],
)
def test_links_between_files_become_links_of_the_site(page: str, text: str, expected: str) -> None:
    assert site_hooks.with_site_links(text, page) == expected


def test_the_check_finds_what_leads_nowhere_and_what_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text("<h1 id='there'>b</h1>")
    (tmp_path / "a.html").write_text(
        "<a href='b.html#there'>1</a><a href='b.html#gone'>2</a><a href='c.html'>3</a><a href='https://x.org'>4</a>"
        "<script src='https://cdn.org/x.js'></script><img src='no.png'><link rel='stylesheet' href='b.html'>"
    )
    assert problems(tmp_path) == [
        "a.html loads https://cdn.org/x.js",
        "a.html loads no.png, which is not there",
        "a.html links to b.html#gone: no such anchor",
        "a.html links to c.html, which is not there",
    ]


def test_the_gallery_has_its_ten_cases_in_order() -> None:
    text = gallery.PAGE.read_text(encoding="utf-8")
    assert re.findall(r"```sh\n(.*?)\n```", text) == [case.command for case in gallery.CASES]
    figures = re.findall(r"```text\n(.*?)\n```", text, re.DOTALL)
    assert len(figures) == len(gallery.CASES) == 10
    assert text == gallery.page([figure.split("\n") for figure in figures])
    assert not re.search(r"/(?:tmp|home|root|work|check)/", text)


@pytest.mark.slow
@pytest.mark.parametrize("case", gallery.CASES, ids=lambda case: case.title)
def test_a_command_of_the_gallery_runs_and_answers(case: gallery.Case, tmp_path: Path) -> None:
    """Its words are those of the page; the figures follow the cost model, and are written again with it."""
    shown = gallery.PAGE.read_text(encoding="utf-8").split(case.command)[1].split("```text\n")[1].split("\n```")[0]
    lines = gallery.answer(case, gallery.workplace(tmp_path / "checkout"))

    def names(text: str) -> set[str]:
        return set(re.findall(r"^ *([a-z][a-z -]+):", text, re.MULTILINE))

    assert names("\n".join(lines)) >= names(shown) - {"lever"}
