"""A pipeline problem refuses what makes no sense, tells itself apart, and reads well."""

from __future__ import annotations

import doctest

import pytest

import taylor.pipeline_solver
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline_solver.model.problem import LayerKind
from tests.solver_cases import reference_problem, small_problem

KIND = small_problem().kinds[0]


def test_the_example_of_the_package_runs_as_it_is_printed():
    assert doctest.testmod(taylor.pipeline_solver).attempted >= 8
    assert doctest.testmod(taylor.pipeline_solver).failed == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": 0}, "stages must be >= 1, found 0"),
        ({"limit_mib": (1.0,)}, "one entry a stage"),
        ({"tail": (1.0, -1.0)}, "tail must be >= 0"),
        ({"tail": (1.0,)}, "one entry a stage"),
        ({"lag": float("nan")}, "lag must be >= 0, found nan"),
        ({"min_layers": -1}, "min_layers must be >= 0"),
        ({"weight_gradient_share": 1.5}, "weight_gradient_share"),
        ({"recompute_ratio": {"half": 1.0}}, "full and select, found 'half'"),
        ({"recompute_ratio": {FULL: -1.0}}, "recompute_ratio of full must be >= 0"),
        ({"uniform_recompute": (("select", 1),)}, "uniform_recompute"),
        ({"kinds": (KIND, KIND)}, "a name of its own"),
        ({"kinds": ()}, "free to place"),
        ({"kinds": (LayerKind("body", -1, 1.0, 1.0, {NONE: 1.0, FULL: 1.0}),)}, "kind body"),
        ({"kinds": (LayerKind("body", 1, 1.0, 1.0, {NONE: 1.0}),)}, "activation_mib lacks full"),
        ({"fixed_layers": {(0, 2): 1}}, r"fixed_layers .* found \(0, 2\)"),
        ({"max_layers": {(1, 0): 1}}, r"max_layers .* found \(1, 0\)"),
        ({"fixed_recompute": {(FULL, 0, -1): 1}}, r"fixed_recompute .* found \(0, -1\)"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_field_and_its_value(change, words):
    with pytest.raises(ValueError, match=words):
        small_problem(**change)


def test_every_field_counts_in_the_fingerprint():
    problem = small_problem()
    changes = {
        "stages": {"stages": 1, "static_mib": (5.0,), "limit_mib": (100.0,)},
        "kinds": {"kinds": (LayerKind("body", 4, 1.0, 10.0, {NONE: 4.0, FULL: 1.5}),)},
        "limit": {"limit_mib": (100.0, 100.0000001)},
        "seed of a rule": {"fixed_layers": {(0, 0): 2}},
        "unit": {"unit_ms": 1.0},
        "order": {"schedule": reference_problem(interleaves=2).schedule},
    }
    prints = {problem.replace(**change).fingerprint() for change in changes.values()}
    assert len(prints | {problem.fingerprint()}) == len(changes) + 1
    assert small_problem().fingerprint() == problem.fingerprint()


def test_a_problem_reads_in_a_few_lines():
    assert repr(reference_problem(interleaves=2, unit_ms=12.5)).splitlines() == [
        "PipelineProblem: 16 stages x 2 virtual stages, 64 micro-batches, interleaved",
        "  3 dense layers: forward 0.397, 866 MiB each; a micro-batch keeps none 479, full 30 MiB by recompute",
        "  59 moe layers: forward 1, 10,691 MiB each; a micro-batch keeps none 765, full 30 MiB by recompute",
        "  limit 55,296 MiB a stage, of which 2,382 to 8,675 MiB without layers",
        "  backward 1.839, full recompute 1, head 1.5, embedding 0, transfer 0; unit 12.5 ms",
    ]
    bound = repr(small_problem(fixed_layers={(0, 0): 2}, uniform_recompute=((FULL, 1), (FULL, 2))))
    assert "by chunk: 1 count of layers" in bound and "one recompute choice of 2" in bound
