"""What mkdocs asks while it builds the site: pages from outside docs/, links to them, formulas without a script."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

PAGES = {
    "README.md": "index.md",
    "README.zh-CN.md": "zh/index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "examples/plugin_launcher/README.md": "plugin_template.md",
}
"""Pages of the site from files outside docs/, by their path in the repository."""

_LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_MATH = re.compile(r'<script type="math/tex(; mode=display)?">(.*?)</script>', re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside docs/."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links at the site's pages."""
    return with_site_links(markdown, page.file.src_uri)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Write formulas as MathML, which browsers draw themselves."""
    if "math/tex" not in html:
        return html
    from latex2mathml.converter import convert

    return _MATH.sub(lambda found: convert(found[2], display="block" if found[1] else "inline"), html)


def with_site_links(markdown: str, page: str) -> str:
    """The text of a page, with its links between files of the repository as links of the site.

    A link to a file that is no page, such as a source, becomes its text: the site goes without the repository.
    """
    source = next((path for path, of in PAGES.items() if of == page), f"docs/{page}")
    parts = _CODE.split(markdown)  # code at odd places
    return "".join(part if at % 2 else _LINK.sub(lambda link: _site_link(link, source, page), part)
                   for at, part in enumerate(parts))  # fmt: skip


def _site_link(link: re.Match[str], source: str, page: str) -> str:
    mark, text, target = link.groups()
    path, hash_sign, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return link[0]
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if wanted in PAGES:
        place = PAGES[wanted]
    elif wanted.startswith("docs/"):
        place = wanted.removeprefix("docs/")
    elif (ROOT / wanted).exists():
        return text
    else:
        return link[0]  # mkdocs reports it
    return f"{mark}[{text}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{hash_sign}{anchor})"
