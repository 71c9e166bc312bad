"""The page of published recipes says how far each one's own layout is from the optimum, and how well that is known."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.recipe_plans import SolvedRecipe, page
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import evaluate
from tests.solver_cases import plan_of, small_problem

UNEVEN = plan_of({"body": [[3, 1]]})


def recipe(problem, **changes):
    solution = solve(problem, SolveOptions(solver="HIGHS-MILP"))
    return SolvedRecipe("some", "DGX", "4 layers", evaluate(problem, UNEVEN), None, solution.replace(**changes))


def test_a_proven_recipe_has_one_figure_and_an_open_one_two():
    """Three and one layers: the first stage alone takes 4 · 9, and the second's chunk once; two and two take 30."""
    one = recipe(small_problem())
    longer = one.own.objective / 30 - 1
    assert one.own_above == longer > 0
    assert (
        one.page_row()
        == f"| some | DGX | 4 layers | {longer:.2%} | {longer:.2%} | proven | {one.solution.seconds:.1f} |"
    )
    still_open = recipe(small_problem(), bound=25.0, status=one.own.status)
    at_most = one.own.objective / 25 - 1
    assert f"| {longer:.2%} to {at_most:.2%} | 16.667% |" in still_open.page_row()


def test_a_layout_over_the_limit_has_no_figure():
    assert "| does not fit | - | proven |" in recipe(small_problem(limit_mib=(44.0, 44.0))).page_row()


def test_the_page_says_how_many_recipes_are_proven():
    solved = [
        recipe(small_problem()),
        recipe(small_problem(), bound=25.0, status=evaluate(small_problem(), UNEVEN).status),
    ]
    text = page(solved, SolveOptions(time_limit=7.0, workers=2))
    assert "at most 7 s a recipe; 1 of 2 are proven" in text and text.count("| some |") == 2


def test_a_recipe_misses_what_was_asked_of_it():
    """A plan within a second, none worse than the recipe's own, and the gap: 0.5 %, or 0.1 % in ten minutes."""
    best = recipe(small_problem())
    soon = replace(best, first=(0.2, 36.0))
    assert soon.missed(60.0) == soon.missed(600.0) == []
    assert best.missed(60.0) == replace(best, first=(1.5, 36.0)).missed(60.0) == ["first plan late"]
    nearly = replace(soon, solution=best.solution.replace(bound=30 * 0.996))
    assert nearly.missed(60.0) == [] and nearly.missed(600.0) == ["gap above 0.1%"]
    worse = replace(soon, solution=best.solution.replace(objective=40.0, bound=40.0))
    assert worse.missed(60.0) == ["worse than its own"]
    none = recipe(small_problem(limit_mib=(20.0, 20.0)))
    assert none.missed(60.0) == []
    assert replace(none, solution=none.solution.replace(status="no_solution")).missed(60.0) == ["no plan"]
