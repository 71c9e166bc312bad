"""The report as one self-contained HTML page: verdict, ranking, pipelines, memory, pruned strategies."""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from taylor.base.files import write_atomic
from taylor.report.facts import PageFacts, PageTable, Share
from taylor.report.memory_parts import MemoryParts
from taylor.report.page_data import Course, page_data
from taylor.report.ranking import tie_lines
from taylor.report.timeline import Timeline

PLOTLY = "plotly-basic.min.js"
"""plotly.js 4.1.1, its smallest bundle (npm: plotly.js-basic-dist-min), MIT licence beside it."""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'; base-uri 'none'">
<link rel="icon" href="data:,"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title><style>{css}</style></head><body><main>
<header><h1>{title}</h1>{about}</header>
{verdict}{what_if}{tables}
<noscript><p class="verdict">The table of candidates and the charts below need JavaScript.</p></noscript>
<p id="unreadable" class="verdict" hidden>This browser cannot unpack the page's charts (DecompressionStream); any of
2023 or later can.</p>
<section id="ranking"{no_ranking}><h2>Ranking</h2><p class="soft">Best first. Click a heading to sort, a row to select;
a column's filter takes text, a list (8,16) or a comparison (&gt;=4). In lists 14×4, 3 means fourteen fours and a three,
one entry a stage, | between virtual stages; risk: of running out of memory.</p>{notes}
<div id="ranking-table"></div></section>
<section id="overview" hidden><h2>Memory and step time</h2>
<div id="parallel-part"><h3>Strategies over their degrees, step and memory (click a line to select)</h3>
<p class="soft hint">Thick: the quickest; dashed: a tie with it, closer than the estimate is off.</p>
<div id="parallel" class="chart" tabindex="0" role="region" aria-label="strategies"></div></div><div class="columns">
<div id="trade-off-part"><h3>Every candidate (click a point to select)</h3>
<div id="trade-off" class="chart"></div></div>
<div id="gaps-part"><h3>How far from proven optimal</h3><div id="gaps" class="chart"></div></div></div></section>
<section id="pipelines" hidden><h2 id="chosen-name">{drawn}</h2><p id="chosen-plan" class="soft" hidden></p>
<div class="bar" id="plan-choice"><label>show <select id="plan-a">{options}</select></label>
<label>beside <select id="plan-b"><option value="">nothing</option>{others}</select></label></div>
{drawings}</section>
{tables_below}
<section id="pruned" hidden><h2>Pruned, and why</h2><div id="pruned-table"></div></section>
<section id="details"><h2>Details</h2>{details}
<details id="chosen-figures" hidden><summary>All figures of the selected candidate, as in the CSV</summary>
<dl id="chosen-facts" class="facts"></dl></details>
<details id="course" hidden><summary>How the solve went</summary><div id="progress-chart" class="chart"></div></details>
</section></main>
<script id="report-data" type="application/octet-stream">{data}</script>
<script id="plotly" type="application/octet-stream">{plotly}</script>
<script>{script}</script>
</body></html>
"""

DRAWING = """<div id="drawing-{0}" class="drawing"><h3 id="name-{0}"></h3>
<ul id="notes-{0}" class="notes soft"></ul>
<div id="pipeline-part-{0}"><div class="bar" id="views-{0}" role="group" aria-label="time shown"></div>
<div class="bar"><input type="search" id="find-{0}" placeholder="find tasks: backward 3" aria-label="find tasks"
title="words of a task's or a row's name; Enter goes to the next one">
<output id="found-{0}" class="soft"></output></div>
<div id="pipeline-{0}" class="chart"></div>
<p class="soft hint">Drag over the chart to zoom into a time and see what fills it; double-click to come back. Click a
task to follow its micro-batch.</p><div id="range-{0}" aria-live="polite"></div></div>
<div class="columns"><div id="parts-part-{0}"><h4>Peak memory of every stage, by what fills it</h4>
<div id="parts-{0}" class="chart"></div></div>
<div id="layers-part-{0}"><h4>Layers of every stage; hatched ones are recomputed</h4>
<div id="legend-{0}" class="legend"></div><div id="layers-{0}" class="strips"></div></div></div>
<div id="memory-part-{0}"><h4>Memory over the step, stage by stage (press one to draw it larger)</h4>
<div id="sparks-{0}" class="sparks"></div><div id="memory-{0}" class="chart"></div></div></div>
"""

ASSETS = Path(__file__).parent / "assets"

SCRIPTS = (
    "page.js",
    "table.js",
    "ranking.js",
    "charts.js",
    "parallel.js",
    "inspect.js",
    "pipeline.js",
    "strips.js",
    "report.js",
)


def write_html_report(
    path: str | Path,
    facts: PageFacts,
    ranking: pd.DataFrame | None = None,
    *,
    plans: Mapping[str, Timeline] | None = None,
    parts: Mapping[str, MemoryParts] | None = None,
    tables: Sequence[PageTable] = (),
    pruned: pd.DataFrame | None = None,
    progress: Mapping[str, Course] | None = None,
    beside: str = "",
    tables_below: bool = False,
) -> Path:
    """Write the report page; it needs nothing but itself (no network, no other file).

    Parameters
    ----------
    facts : PageFacts
        Title, job, verdict, assumptions.
    ranking : DataFrame, optional
        Columns of ``test_result_*.csv``, best first; ``offset``, ``recompute``, ``layers``,
        ``peak_memory`` and ``memory_limit`` contain JSON text. May be empty.
    plans : mapping of name to Timeline
        Pipelines to draw. A name equal to a row's ``file``, or to its stem, belongs to that row.
    parts : mapping of name to MemoryParts
        Parts of a plan's memory, by its name in `plans`.
    tables : sequence of PageTable
        Tables between the verdict and the charts.
    pruned : DataFrame, optional
        Strategies that the search removed and why, any columns.
    progress : mapping of name to (seconds, objective, bound)
        Progress of a plan's solve (by its name in `plans`), in the solver's units.
    beside : str
        Plan that is drawn below the first one when the page opens.
    tables_below : bool
        The tables stand below the charts.

    Returns
    -------
    Path
        Path of the written file (atomic).

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    rows = pd.DataFrame() if ranking is None else ranking
    names = list(plans or {})
    page = PAGE.format(
        title=html.escape(facts.title),
        css=_asset("report.css"),
        about=_about(facts),
        verdict=_verdict(facts),
        what_if=_sentences("What if", "what-if", facts.what_if),
        tables="" if tables_below else "".join(map(_table, tables)),
        tables_below="".join(map(_table, tables)) if tables_below else "",
        notes="".join(map(_soft, [] if rows.empty else tie_lines(rows))),
        no_ranking=" hidden" if rows.empty else "",
        drawn="Pipeline" if rows.empty else "Selected",
        options=_options(names),
        others=_options(names, beside),
        drawings=DRAWING.format("a") + DRAWING.format("b"),
        details=_details(facts),
        data=_packed(json.dumps(page_data(rows, plans or {}, parts or {}, pruned, progress or {}), allow_nan=False)),
        plotly=_library(),
        script="\n".join(map(_asset, SCRIPTS)),
    )
    return write_atomic(path, page)


def _options(names: Sequence[str], selected: str = "") -> str:
    return "".join(
        f'<option value="{html.escape(name)}"{" selected" if name == selected else ""}>{html.escape(name)}</option>'
        for name in names
    )


def _about(facts: PageFacts) -> str:
    items = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts.about.items()
    )
    return f'<dl class="about">{items}</dl>'


def _verdict(facts: PageFacts) -> str:
    """Sentence that answers all, then each answer, then the assumptions."""
    cards = "".join(
        f'<div class="card {one.tone}"><h2>{html.escape(one.question)}</h2><p class="answer">{html.escape(one.answer)}'
        f"</p>{_soft(one.detail)}</div>"
        for one in facts.answers
    )
    if facts.assumed:
        listed = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in facts.assumed)
        cards += f'<div class="card"><h2>What was assumed?</h2><ul>{listed}</ul></div>'
    sentence = f'<p class="verdict">{html.escape(facts.verdict)}</p>' if facts.verdict else ""
    shown = f'{sentence}<div class="cards">{cards}</div>' if cards else sentence
    return f'<section id="verdict" aria-label="verdict">{shown}</section>' if shown else ""


def _soft(text: str) -> str:
    return f'<p class="soft">{html.escape(text)}</p>' if text else ""


def _sentences(title: str, name: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    listed = "".join(f"<li>{html.escape(one)}</li>" for one in sentences)
    return f'<section id="{name}"><h2>{title}</h2><ul class="notes">{listed}</ul></section>'


def _details(facts: PageFacts) -> str:
    unmodelled = _list("Flags whose effect is in no figure", facts.unmodelled)
    return unmodelled + _list("Further figures", facts.notes)


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    listed = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'<details><summary>{title} ({len(lines)})</summary><ul class="notes">{listed}</ul></details>'


def _table(table: PageTable) -> str:
    heads = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.columns)
    body = "".join(
        f"<tr{' class=selected' if at == table.marked else ''}>{''.join(map(_cell, row))}</tr>"
        for at, row in enumerate(table.rows)
    )
    title = html.escape(table.title)
    return (
        f'<section><h2>{title}</h2>{_soft(table.note)}<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{title}"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div></section>'
    )


def _cell(cell: str | Share) -> str:
    if isinstance(cell, str):
        return f"<td>{html.escape(cell)}</td>"
    shares = ", ".join(f"{name} {share:.1%}" for name, share in cell.parts)
    bars = "".join(
        f'<span class="part-{at}" style="width:{100 * share:.2f}%"></span>' for at, (_, share) in enumerate(cell.parts)
    )
    label = html.escape(shares)
    return f'<td><span class="share" role="img" aria-label="{label}" title="{label}">{bars}</span></td>'


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    return _packed(_asset(PLOTLY))


def _packed(text: str) -> str:
    """Text as the page's script unpacks it: gzip, base64; nothing in it can close the script element."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", "surrogatepass"), 9, mtime=0)).decode("ascii")
