"""Model files: any reader finds the reported optimum, and the names say what they mean."""

from __future__ import annotations

import highspy
import numpy as np
import pulp
import pytest

from benchmarks.brute_force import comparable_problem
from taylor.base.errors import InputError
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.milp.cbc import cbc_path
from taylor.pipeline_solver.milp.compact_model import CompactModel
from taylor.pipeline_solver.milp.linear_form import LinearForm, Row, write_mps_file
from taylor.pipeline_solver.milp.model_files import write_model, write_mps, write_sol
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind
from taylor.pipeline_solver.model.solution import OPTIMAL
from taylor.pipeline_solver.solving.solve import solve
from tests.solver_cases import REFERENCE_OBJECTIVE, plan_of, reference_problem, small_problem


def highs_optimum(path):
    """Optimum and values by name, read and solved by HiGHS."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    assert solver.readModel(str(path)) == highspy.HighsStatus.kOk
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    names = [solver.getColName(column)[1] for column in range(solver.getNumCol())]
    return solver.getInfo().objective_function_value, dict(zip(names, solver.getSolution().col_value, strict=True))


def cbc_optimum(path):
    """Optimum and values by name, read by PuLP and solved by its CBC."""
    variables, model = pulp.LpProblem.fromMPS(str(path))
    model.solve(pulp.COIN_CMD(path=cbc_path(), msg=False))
    assert model.status == pulp.LpStatusOptimal
    return variables["step_time"].value(), {name: variable.value() for name, variable in variables.items()}


def without_the_proof(path):
    """The same file without the row that states the proven bound: the cuts alone must carry the optimum."""
    copy = path.with_name("cuts_alone.mps")
    text = path.read_text()
    assert "proven_bound" in text
    copy.write_text("\n".join(line for line in text.splitlines() if "proven_bound" not in line) + "\n")
    return copy


@pytest.mark.parametrize("read", [highs_optimum, cbc_optimum])
@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP"])
def test_the_file_of_the_reference_case_has_the_reported_optimum(tmp_path, read, solver):
    problem = reference_problem()
    solution = solve(problem, SolveOptions(solver=solver))
    path = write_mps(problem, solution, tmp_path / "model.mps")
    for file in (path, without_the_proof(path)):
        optimum, values = read(file)
        assert optimum == pytest.approx(REFERENCE_OBJECTIVE, rel=1e-6)
        layers = {kind: [[round(values.get(f"x_{kind}[{s},0]", 0)) for s in range(16)]] for kind in ("dense", "moe")}
        recompute = [[sum(round(values.get(f"recompute_{kind}[{s},0]", 0)) for kind in layers) for s in range(16)]]
        # The reader's own plan is as good as it says, by the checker.
        assert check(problem, plan_of(layers, {FULL: recompute}), REFERENCE_OBJECTIVE) == []


def test_a_solution_without_cuts_gets_those_that_its_file_needs(tmp_path):
    problem = reference_problem()
    solution = solve(problem, SolveOptions(solver="HIGHS-MILP")).replace(cuts=(), statistics={})
    path = write_mps(problem, solution, tmp_path / "model.mps")
    assert "these alone give the objective" in path.read_text()
    optimum, _ = highs_optimum(without_the_proof(path))
    assert optimum == pytest.approx(REFERENCE_OBJECTIVE, rel=1e-6)


def test_compact_and_full_files_have_the_optimum_of_random_problems(tmp_path):
    """Lags, tails, several kinds and modes, every schedule: against the enumeration of every plan."""
    rng = np.random.default_rng(21)
    seen = 0
    while seen < 8:
        problem, truth = comparable_problem(rng, 20_000)
        if truth.plan is None:
            continue
        seen += 1
        solution = solve(problem, SolveOptions(solver="HIGHS-MILP"))
        compact = without_the_proof(write_mps(problem, solution, tmp_path / f"{seen}.mps"))
        full = write_mps(problem, solution, tmp_path / f"{seen}_full.mps", form="full")
        for path, read in ((compact, cbc_optimum), (full, highs_optimum), (full, cbc_optimum)):
            assert read(path)[0] == pytest.approx(truth.objective, rel=1e-6), (path.name, read.__name__, problem)


def test_names_are_those_of_the_contract(tmp_path):
    kinds = (
        LayerKind("dense", 2, 0.5, 5.0, {NONE: 4.0, SELECT: 2.0, FULL: 1.0}),
        LayerKind("moe", 3, 1.0, 10.0, {NONE: 4.0, SELECT: 2.0, FULL: 1.0}),
    )
    problem = small_problem(kinds=kinds, recompute_ratio={FULL: 1.0, SELECT: 0.3})
    text = write_mps(problem, solve(problem, SolveOptions(solver="HIGHS-MILP")), tmp_path / "model.mps").read_text()
    words = set(text.split())
    assert {"x_dense[0,0]", "x_moe[1,0]", "recompute_moe[1,0]", "select_dense[0,0]", "step_time"} <= words
    assert {"layers_dense", "layers_moe", "memory[0]", "memory[1]", "path_cut[1]"} <= words


def test_the_sol_file_holds_the_solution_by_name(tmp_path):
    problem = reference_problem()
    solution = solve(problem, SolveOptions(solver="HIGHS-MILP"))
    lines = write_sol(problem, solution, tmp_path / "model.sol").read_text().splitlines()
    head = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    values = dict(line.split(" ") for line in lines if not line.startswith("# "))
    assert head["status"] == OPTIMAL
    assert float(head["objective"]) == solution.objective
    assert float(head["bound"]) == solution.bound
    for s in range(16):
        assert int(values[f"x_moe[{s},0]"]) == solution.plan.layers["moe"][0][s]
    assert float(values["step_time"]) == pytest.approx(REFERENCE_OBJECTIVE)


def test_the_sol_file_is_a_feasible_point_of_the_mps_file(tmp_path):
    """Fixing every variable of the model at the value in the `.sol` leaves it feasible, at the same optimum."""
    kinds = tuple(
        LayerKind(kind.name, kind.count, kind.forward, kind.layer_mib, {**kind.activation_mib, SELECT: 300.0})
        for kind in reference_problem().kinds
    )
    problem = reference_problem(kinds=kinds, recompute_ratio={FULL: 1.0, SELECT: 0.33})
    solution = solve(problem, SolveOptions(solver="HIGHS-MILP"))
    path = write_mps(problem, solution, tmp_path / "model.mps")
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(path))
    columns = {solver.getColName(column)[1]: column for column in range(solver.getNumCol())}
    for line in write_sol(problem, solution, tmp_path / "model.sol").read_text().splitlines():
        if not line.startswith("#"):
            name, value = line.split(" ")
            if name != "step_time":
                solver.changeColBounds(columns.pop(name), float(value), float(value))
    assert list(columns) == ["step_time"]
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    assert solver.getInfo().objective_function_value == pytest.approx(solution.objective, rel=1e-6)


def test_an_unknown_form_is_refused_and_nothing_written(tmp_path):
    problem = small_problem()
    with pytest.raises(InputError, match="compact, full"):
        write_mps(problem, solve(problem, SolveOptions(solver="HIGHS-MILP")), tmp_path / "model.mps", form="half")
    assert list(tmp_path.iterdir()) == []


def test_a_row_with_two_bounds_is_not_written(tmp_path):
    """RANGES is what readers disagree on; the models here have no such row."""
    one = np.zeros(1)
    form = LinearForm(("a",), one, one + 1, one, np.array([False]), [Row("r", (0,), (1.0,), 0.0, 1.0)])
    with pytest.raises(ValueError, match="row r has two bounds"):
        write_mps_file(form, tmp_path / "model.mps")


def test_bounds_of_columns_and_rows_are_those_that_another_reader_finds(tmp_path):
    """Lower bounds of either sign, none, nought, of whole and of other columns; rows from below, from above, equal."""
    names = ("at_least_two", "below_nought", "free", "from_nought", "whole", "whole_from_three", "no_less", "fixed")
    lower = np.array([2.0, -4.0, -np.inf, 0.0, 0.0, 3.0, -np.inf, 7.0])
    upper = np.array([np.inf, 5.0, np.inf, 6.0, 9.0, 8.0, 1.0, 7.0])
    whole = np.array([False, False, False, False, True, True, False, False])
    rows = [
        Row("proven_bound", (0, 3), (1.0, 2.0), lower=0.1),
        Row("memory", (1, 2), (1.0, -3.0), upper=-2.5),
        Row("layers", (4, 5), (1.0, 1.0), 4.0, 4.0),
        Row("nought", (6, 7), (1.0, 1.0), lower=0.0),
    ]
    form = LinearForm(names, lower, upper, np.arange(8.0), whole, rows)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    assert solver.readModel(str(write_mps_file(form, tmp_path / "model.mps"))) == highspy.HighsStatus.kOk
    read = solver.getLp()
    assert tuple(read.col_names_) == names and list(read.col_lower_) == lower.tolist()
    assert list(read.col_upper_) == upper.tolist() and list(read.col_cost_) == list(range(8))
    assert [kind == highspy.HighsVarType.kInteger for kind in read.integrality_] == whole.tolist()
    assert list(read.row_names_) == [row.name for row in rows]
    assert list(read.row_lower_) == [0.1, -np.inf, 4.0, 0.0] and list(read.row_upper_) == [np.inf, -2.5, 4.0, np.inf]


def test_the_proven_bound_of_a_file_is_the_solutions(tmp_path):
    problem = small_problem()
    solution = solve(problem, SolveOptions(solver="HIGHS-MILP"))
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(write_mps(problem, solution, tmp_path / "model.mps")))
    read = solver.getLp()
    [row] = [number for number, name in enumerate(read.row_names_) if name == "proven_bound"]
    assert (read.row_lower_[row], read.row_upper_[row]) == (solution.bound, np.inf)


@pytest.mark.parametrize("form", ["compact", "full"])
def test_both_files_written_at_once_are_those_written_one_by_one(tmp_path, form):
    problem = small_problem()
    solution = solve(problem, SolveOptions(solver="HIGHS-MILP"))
    together = tmp_path / "together.mps", tmp_path / "together.sol"
    write_model(problem, solution, *together, form)
    assert together[0].read_bytes() == write_mps(problem, solution, tmp_path / "alone.mps", form).read_bytes()
    assert together[1].read_bytes() == write_sol(problem, solution, tmp_path / "alone.sol").read_bytes()


def test_the_rows_of_order_grow_with_the_kinds_and_not_with_their_square():
    def rows(kinds):
        some = tuple(LayerKind(f"kind{i}", 1, 1.0, 1.0, {NONE: 1.0, FULL: 0.5}) for i in range(kinds))
        problem = small_problem(kinds=some, min_layers=0, stages=4, static_mib=(0.0,) * 4, limit_mib=(99.0,) * 4)
        names = [row.name for row in CompactModel.build(problem).form.rows]
        return sum(name.startswith(("order[", "first_layers[")) for name in names)

    assert rows(40) < 2.5 * rows(20)
