"""Check every link of the built site: ``python -m benchmarks.site_check FOLDER``; 1 where one leads nowhere.

A page loads nothing from elsewhere, links within the site lead to a file and an anchor that are there.
"""

from __future__ import annotations

import argparse
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ELSEWHERE = ("http", "https", "mailto")


class _Page(HTMLParser):
    """Anchors of a page, what it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what leads somewhere."""
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        target = found.get("href") or found.get("src")
        if target is None:
            return
        shown = tag == "a" or (tag == "link" and found.get("rel") in ("canonical", "next", "prev", "edit"))
        (self.links if shown else self.loads).append(target)


def problems(site: Path) -> list[str]:
    """Links that lead nowhere, and loads from elsewhere, a line each."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        for target in page.loads:
            parts = urlsplit(target)
            if parts.scheme in ELSEWHERE or parts.netloc:
                found.append(f"{name} loads {target}")
            elif parts.scheme != "data" and not _place(site, path, parts.path).exists():
                found.append(f"{name} loads {target}, which is not there")
        for target in page.links:
            parts = urlsplit(target)
            if parts.scheme in ELSEWHERE or parts.netloc:
                continue
            place = _place(site, path, parts.path)
            if not place.is_file():
                found.append(f"{name} links to {target}, which is not there")
            elif parts.fragment and place in pages and unquote(parts.fragment) not in pages[place].anchors:
                found.append(f"{name} links to {target}: no such anchor")
    return found


def _place(site: Path, page: Path, target: str) -> Path:
    """File that a link leads to; one that begins with a slash starts at the site's top."""
    start = site if target.startswith("/") else page.parent
    place = (start / unquote(target).lstrip("/")).resolve() if target else page
    return place / "index.html" if place.is_dir() else place


def main() -> int:
    """Check a folder and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    site = parser.parse_args().site.resolve()
    found = problems(site)
    pages = len(list(site.rglob("*.html")))
    print("\n".join([*found, f"{pages} pages, {len(found)} problems"]))
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
