"""Still pictures: readable in colour, in grey and to the colour-blind; nothing cut; hostile names harmless."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from taylor.base.errors import InputError
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.report.outputs import write_views
from taylor.report.palette import COLOURS, HATCHES, RECOMPUTE, ink, shade
from taylor.report.picture import _draw, _size, write_picture
from taylor.report.planned import planned_timeline
from tests.report_cases import deepseek, even_plan

# Viénot, Brettel and Mollon 1999: dichromat simulation, linear RGB.
DEUTERANOPE = np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]])
PROTANOPE = np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]])


def linear(colour):
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE L*a*b* (D65) of linear RGB."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    f = np.cbrt(np.maximum(xyz / np.array([0.9505, 1.0, 1.089]), 0))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


MAIN = (FORWARD, BACKWARD, WEIGHT_GRADIENT, RECOMPUTE)


@pytest.mark.parametrize("eye", [np.eye(3), DEUTERANOPE, PROTANOPE], ids=["all cones", "deuteranope", "protanope"])
def test_the_main_colours_are_far_apart_to_every_eye(eye):
    """A CIE76 distance of 20 is told apart at a glance; 2.3 is the least that is noticed."""
    for a, b in itertools.combinations(MAIN, 2):
        distance = np.linalg.norm(lab(eye @ linear(COLOURS[a])) - lab(eye @ linear(COLOURS[b])))
        assert distance > 20, (a, b, distance)


def test_in_grey_print_lightness_or_a_hatch_tells_the_main_colours_apart():
    for a, b in itertools.combinations(MAIN, 2):
        light = abs(lab(linear(COLOURS[a]))[0] - lab(linear(COLOURS[b]))[0])
        assert light > 12 or HATCHES.get(a) != HATCHES.get(b), (a, b, light)


@pytest.mark.parametrize("eye", [np.eye(3), DEUTERANOPE, PROTANOPE], ids=["all cones", "deuteranope", "protanope"])
@pytest.mark.parametrize("interleaves", [2, 3, 4])
def test_interleaves_are_told_apart_by_every_eye(eye, interleaves):
    for kind in (FORWARD, BACKWARD, WEIGHT_GRADIENT):
        fills = [lab(eye @ linear(shade(kind, v, interleaves))) for v in range(interleaves)]
        apart = [np.linalg.norm(a - b) for a, b in itertools.combinations(fills, 2)]
        assert min(apart) > 20 / (interleaves - 1), (kind, apart)


def test_numbers_are_written_in_the_ink_that_reads_on_every_shade():
    for kind, interleave in itertools.product(MAIN, range(4)):
        fill = shade(kind, interleave, 4)
        low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (fill, ink(fill)))
        assert (high + 0.05) / (low + 0.05) > 3.0, (kind, interleave, fill)


@pytest.mark.parametrize(
    "problem",
    [
        deepseek(4, 1, 8, unit_ms=3.0),
        deepseek(16, 2, 64, "interleaved"),
        deepseek(4, 2, 8, "zero_bubble_v"),
    ],
    ids=["small", "windows", "zero-bubble V"],
)
def test_no_label_is_cut_and_none_lies_on_another(problem):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    timeline = planned_timeline(problem, even_plan(problem), "a name of usual length")
    figure = Figure(figsize=_size(timeline), layout="constrained")
    _draw(figure, timeline.in_ms())
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer, (width, height) = canvas.get_renderer(), canvas.get_width_height()
    boxes = []
    for axes in figure.axes:
        labels = [
            axes.xaxis.label,
            axes.yaxis.label,
            axes.title,
            axes._left_title,
            *axes.get_yticklabels(),
            *(tick for tick in axes.get_xticklabels()),
        ]
        limits = axes.get_window_extent(renderer)
        for label in labels:
            box = label.get_window_extent(renderer)
            ticks = label in axes.get_xticklabels() and not limits.x0 - 1 <= (box.x0 + box.x1) / 2 <= limits.x1 + 1
            if label.get_text().strip() and label.get_visible() and not ticks:
                boxes.append((label.get_text(), box))
    boxes += [(text.get_text(), text.get_window_extent(renderer)) for text in figure.texts if text.get_text()]
    boxes += [(figure._suptitle.get_text(), figure._suptitle.get_window_extent(renderer))]
    boxes += [
        (legend_text.get_text(), legend_text.get_window_extent(renderer))
        for legend in figure.legends
        for legend_text in legend.get_texts()
    ]
    for text, box in boxes:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, text
    for (one, a), (two, b) in itertools.combinations(
        dict((f"{t}@{b.x0:.0f},{b.y0:.0f}", (t, b)) for t, b in boxes).values(), 2
    ):
        assert not (a.x0 < b.x1 - 1 and b.x0 < a.x1 - 1 and a.y0 < b.y1 - 1 and b.y0 < a.y1 - 1), (one, two)


def test_png_svg_and_pdf_are_what_their_suffix_says(tmp_path):
    problem = deepseek(4, 1, 4)
    timeline = planned_timeline(problem, even_plan(problem))
    assert write_picture(timeline, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert write_picture(timeline, tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    root = ET.parse(write_picture(timeline, tmp_path / "a.svg")).getroot()
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"stage 0", "stage 3", "forward", "backward", "recompute (in the backward)"} <= set(texts)


def test_another_suffix_is_refused_with_those_that_work(tmp_path):
    problem = deepseek(4, 1, 4)
    with pytest.raises(InputError, match=r"must end in \.png, \.svg, \.pdf"):
        write_picture(planned_timeline(problem, even_plan(problem)), tmp_path / "a.bmp")
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_mathematics_or_markup_is_drawn_as_it_is(tmp_path):
    problem = deepseek(4, 1, 4)
    name = r"$\frac{a}{$ <b>&"
    root = ET.parse(write_picture(planned_timeline(problem, even_plan(problem), name), tmp_path / "a.svg")).getroot()
    assert any(name in "".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))


def test_every_view_of_a_solution_is_written_and_named_by_its_role(tmp_path):
    problem = deepseek(4, 1, 6, unit_ms=2.0)
    solution = evaluate(problem, even_plan(problem))
    files = write_views(
        problem,
        solution,
        title="plan",
        trace=tmp_path / "t.json",
        html=tmp_path / "r.html",
        picture=tmp_path / "p.svg",
        others={"even": even_plan(problem, 3)},
    )
    assert set(files) == {"trace", "html", "svg"}
    assert all((tmp_path / name).exists() for name in ("t.json", "r.html", "p.svg"))
    assert "even: stage 3" in (tmp_path / "t.json").read_text()
    assert write_views(problem, solution, title="plan") == {}


SMALL = deepseek(4, 1, 4)


def drawn(timeline):
    figure = Figure(figsize=(12, 6))
    _draw(figure, timeline)
    return figure


def test_the_axis_of_time_is_in_milliseconds_where_the_unit_is_known():
    timeline = planned_timeline(SMALL, even_plan(SMALL))
    label = {unit: drawn(replace(timeline, unit_ms=unit, memory=())).axes[0].get_xlabel() for unit in (None, 2.0)}
    assert label == {None: "time, units of one body layer's forward", 2.0: "time, ms"}


def test_jobs_in_lanes_of_one_row_lie_beside_each_other_within_it():
    timeline = planned_timeline(SMALL, even_plan(SMALL))
    half = np.arange(len(timeline.stage)) % 2
    for lane, height in ((np.zeros_like(half), 0.84), (half, 0.42)):
        paths = [
            path
            for each in drawn(replace(timeline, lane=lane, memory=())).axes[0].collections
            for path in each.get_paths()
        ]
        bars = np.array([(path.vertices[:, 1].min(), path.vertices[:, 1].max()) for path in paths])
        assert np.allclose(bars[:, 1] - bars[:, 0], height) and (bars.round() == bars[:, :1].round()).all()
