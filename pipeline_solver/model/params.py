"""Parameters of the solver's methods, a frozen record for each sub-package.

A record has the limits, fractions, counts and periods of its methods with their defaults, and a switch for each method
(a bool, or a count that may be 0). Tolerances, and constants inside compiled kernels, stay beside the code that they
belong to. `parse_params` reads values from a text: ``tree.samples=0,heuristics.starts=8``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

from taylor.base.near import near_names


@dataclass(frozen=True)
class TreeParams:
    """Parameters of the tree: its columns, nodes, rounds, probing, enumeration and targets.

    Parameters
    ----------
    few_tuples, few_columns : int
        Most layer tuples of all stages, and most columns, that are all listed; of more, those that dual values do not
        rule out.
    many_kinds_tuples : int
        The first for one stage with virtual stages and more than three kinds.
    few_virtual_stages : int
        Most virtual stages with which all columns are listed, where they are few, before there is a plan.
    most_columns : int
        Most columns of a tree.
    phases : bool
        Columns with open order of kinds are distinguished by their phases.
    few_loose, many_loose : int
        Most columns with open order of kinds that are distinguished by their phases from the start; the second number
        where these can be enumerated. More columns first prove what they can without phases, because they are then a
        half to a tenth as many.
    listed_below : float
        Fraction of a step time with too many columns, below which columns are listed again.
    root_lps, node_lps : int
        Most LPs at the root, and at a node.
    first_columns : int
        Columns of each stage that an LP with column generation starts with.
    look_iterations, strong_iterations : int
        Simplex iterations for each child of a tried split, and for one of the few finalists.
    final_ahead : int
        Finalists in a row without a better one that end the trial: the likeliest come first, and each costs two long
        LPs.
    most_failures : int
        Failed LPs in a row, each solved again from nothing, after which the tree is given up.
    node_plans : bool
        Nodes look for plans: the dynamic programme on reduced costs, at every fourth node or so.
    price_pool : bool
        Dual values of nodes' LPs join the pool, which bounds later nodes.
    nodes_a_batch : int
        Open nodes for each subtree batch before the nodes are dealt out.
    first_slice, last_slice : int
        Simplex iterations of a batch in the first round and at most, times the LP's `quickness`.
    first_rounds : int
        Rounds of the first tree before it is abandoned as slow.
    staged_share : float
        A tree is abandoned when it has not closed this fraction of its root's gap in the rounds granted, and again
        after each as many. Then the bound is raised target by target, each half-way to the one before, in trees of
        fewer columns. The fewer nodes are open, the faster bounds rise: trees of S4 V4 that had closed 39 to 46 % of
        their gap after three rounds had closed all of it, or 84 % and more, after six.
    closed_well : float
        Fraction of its gap from which a tree is worth its end.
    patience, after_abandoning : int
        Rounds granted as a multiple of those of the longest tree that was searched to its end, and their growth after
        an abandoned one: trees of slightly higher targets take slightly longer, and each starts from nothing.
    hand_over_rounds : int
        Without virtual stages, rounds after which the compact MILP takes over the plan and the cuts: HiGHS's cuts close
        what splits of stages do not when many stages have one or two layers each.
    many_stages : int
        Least stages with which it takes over after the first round: further rounds close little of the gap there.
    batches : int
        Subtree batches of a round, whatever the number of processes: the search, and so its result, is the same.
    probing_batches, enumerating_batches : int
        Batches that probe columns, and that enumerate choices: few, because a batch's earlier paths make its next LPs
        short and the tables of an enumeration are large, so more batches do more work in all.
    shared_cuts : int
        Most cuts that a batch sends to the others after a round, the newest ones.
    last_steps : int
        Most columns that an enumerating batch visits before the progress of all is checked.
    probing : bool
        Classes of columns are probed before the rounds.
    most_probed : int
        Most columns that are probed: with more, each LP takes long and the tree does better.
    probed_stages : int
        Stages that are probed before the batches exchange results.
    probe_gain : float
        Least fraction of the columns that probing must rule out to continue.
    probe_least : float
        Largest fraction of many columns that may remain after the first probing, or a lower step time is the next
        target.
    probe_stop : float
        Largest fraction of the columns that may remain after half of the stages, or the rest is not probed.
    probe_rebuild : float
        Remaining fraction of the columns below which the tree is rebuilt after probing.
    class_share : float
        Most weight in the LP of a probed class: of each key, the largest such class is probed.
    probe_lps, probe_cuts : int
        Most LPs for a class, and most known paths that each of them takes.
    probe_most_cuts : int
        Most cuts of the LP before those that are slack over all remaining columns are dropped.
    probe_promise : float
        Least fraction of the gap to the cutoff that the first LP must close, or the class is skipped.
    probe_lp_rebuild : float
        Remaining fraction of the LP's columns below which the LP is rebuilt before probing.
    probe_annealing : bool
        Annealing among the remaining columns after each sweep of probing.
    enumeration : bool
        Nodes are closed by enumeration where it is short.
    paths, least_paths : int
        Newest paths of the pool that prune an enumeration, in addition to those of the LP; least number that must fit.
    near_paths : int
        Longest paths, under durations near those of the node's LP, that prune; 0 for none.
    near_noise : float
        Relative noise of these durations (standard deviation).
    near_tasks : float
        Most tasks evaluated to find these, some 20 ms.
    most_states : int
        Most totals of layers by kind that are distinguished; with more, only the number of layers counts.
    most_borders : int
        Most borders between stages that are distinguished.
    first_steps, most_steps, most_phased_steps : int
        Columns visited for a node before its total is estimated, and the most that this total may be: a node that would
        take more is left to its LPs. The last number is for columns with phases, of which splits close less.
    most_ordered : int
        Most ordered columns that are enumerated: with more, a first look takes longer than the LPs of a node.
    samples, first_samples : int
        Samples of an enumeration in each order of the stages, 0 for none; and number after which a hopeless one is
        rejected.
    hopeless : float
        Multiple of the column limit from which the first samples' estimate makes an enumeration hopeless. Of the nodes
        of LLaMA3-70B on 8 stages with 5 virtual stages none was closed with an estimate above twelve times the limit;
        most of the others had a thousand times. Where probing continues with the same columns none is hopeless: probing
        gains from each path found on the way.
    sample_steps : int
        Columns visited in the time of a sample's overhead.
    steps_an_iteration : int
        Columns visited in the time of a simplex iteration.
    dealt_above : float
        Least ratio of remaining columns to cells of the rows for dealing them to batches: the tables that these build
        first take as long as half as many columns.
    dealt_by_border, dealt_by_column : int
        Least borders a portion for which choices are dealt by their first border, because each portion then tabulates
        its own alone; else desired columns a portion of the stage by which they are dealt.
    most_new_rows, spare_rows : int
        Most rows that may join an enumeration later, and rows with space allocated from the start.
    most_cells : int
        Most columns times rows, and places between stages times rows: some 200 MB each.
    most_table : int
        Most steps for the tables of the other stages' least sums.
    table_steps : int
        Steps of a table in the time of one visited column.
    choice_steps : int
        Columns that could be visited in the time of one evaluation by the event graph.
    least_step : float
        Step of a target, as a fraction of the step time, below which its tree is searched to the end.
    half_way, times_as_long : float
        Largest fraction of the way to the best plan's step time for the next target, and the expected time of its tree
        as a multiple of the one before: three to five in those measured.
    least_way : float
        Least fraction of that way for a target.
    time_share : float
        Fraction of the remaining time in which the next tree must end: one that does not end in time proves little.
    busiest_stage : bool
        Without virtual stages, plans are split by their busiest stage first.
    looked_at, most_parts : int
        Parts of that search that are evaluated whatever the cutoff, and at most.
    """

    few_tuples: int = 2000
    few_columns: int = 20_000
    many_kinds_tuples: int = 20_000
    few_virtual_stages: int = 8
    most_columns: int = 200_000
    phases: bool = True
    few_loose: int = 3000
    many_loose: int = 100_000
    listed_below: float = 0.99
    root_lps: int = 600
    node_lps: int = 60
    first_columns: int = 200
    look_iterations: int = 25
    strong_iterations: int = 400
    final_ahead: int = 3
    most_failures: int = 8
    node_plans: bool = True
    price_pool: bool = True
    nodes_a_batch: int = 3
    first_slice: int = 2_000
    last_slice: int = 20_000
    first_rounds: int = 3
    staged_share: float = 1 / 3
    closed_well: float = 0.5
    patience: int = 3
    after_abandoning: int = 2
    hand_over_rounds: int = 3
    many_stages: int = 24
    batches: int = 4
    probing_batches: int = 2
    enumerating_batches: int = 2
    shared_cuts: int = 400
    last_steps: int = 16_000_000
    probing: bool = True
    most_probed: int = 60_000
    probed_stages: int = 4
    probe_gain: float = 0.1
    probe_least: float = 0.75
    probe_stop: float = 0.98
    probe_rebuild: float = 0.7
    class_share: float = 0.5
    probe_lps: int = 8
    probe_cuts: int = 8
    probe_most_cuts: int = 320
    probe_promise: float = 0.15
    probe_lp_rebuild: float = 0.6
    probe_annealing: bool = True
    enumeration: bool = True
    paths: int = 300
    least_paths: int = 50
    near_paths: int = 300
    near_noise: float = 0.1
    near_tasks: float = 2.5e6
    most_states: int = 20_000
    most_borders: int = 1000
    first_steps: int = 1_000_000
    most_steps: int = 60_000_000
    most_phased_steps: int = 250_000_000
    most_ordered: int = 5000
    samples: int = 50
    first_samples: int = 16
    hopeless: float = 30.0
    sample_steps: int = 30_000
    steps_an_iteration: int = 1000
    dealt_above: float = 1.0
    dealt_by_border: int = 4
    dealt_by_column: int = 8
    most_new_rows: int = 650
    spare_rows: int = 60
    most_cells: int = 24_000_000
    most_table: int = 60_000_000
    table_steps: int = 16
    choice_steps: int = 20_000
    least_step: float = 2e-4
    half_way: float = 0.5
    times_as_long: float = 4.0
    least_way: float = 0.1
    time_share: float = 0.9
    busiest_stage: bool = True
    looked_at: int = 64
    most_parts: int = 4_000


@dataclass(frozen=True)
class HeuristicsParams:
    """Parameters of the searches for plans: local search, and annealing on columns.

    Parameters
    ----------
    slice_tasks : float
        Most tasks evaluated by a slice of a local search, about a quarter of a second: then the clock is checked.
    short_tasks, long_tasks : float
        Most tasks evaluated by a short local search, for the first plan, and by a long one, where a problem is hard.
    least_moves, short_moves, long_moves : int
        Least moves of any local search, most of a short and of a long one.
    cold, alternating_cold : float
        Last temperature of a local search, as a fraction of the step time; the latter of long searches where kinds
        alternate: these gain by more frequent restarts.
    hot, alternating_hot : tuple of float
        First temperatures of successive long searches, as such fractions; the latter where kinds alternate.
    starts : int
        Short searches from the start, where a problem is hard; 0 for none.
    start_hot : tuple of float
        Their successive first temperatures.
    enough : int
        Short searches that must find the best plan before a problem counts as searched.
    long_searches : int
        With many columns, most long local searches from the first plan; 0 for none.
    long_gain, long_share : float
        Least gain, as a fraction of the step time, for which these repeat, and their fraction of the remaining time.
    far_gap : float
        Least gap, as a fraction of the step time, for long local searches where short ones found the same plan, and for
        more of them where columns leave the kinds' order open.
    loose_searches, loose_without_success : int
        Most of the latter searches, 0 for none, and most without success.
    loose_share : float
        Their fraction of the remaining time.
    border_annealing : bool
        Repeating patterns with virtual stages are annealed from many unlike starts (`border_annealing`).
    border_first_stages : int
        Least virtual stages with which annealing comes before the first bound: with two of them the root mostly proves
        what a short local search finds.
    border_first_runs, border_runs : int
        Most runs before the first bound, and where the gap remains far.
    border_without_success : int
        Runs in a row without a better plan after which they end.
    border_first_share : float
        Fraction of the remaining time for the runs before the first bound; the later ones have `loose_share`.
    border_moves, border_tasks : float
        Most moves of a run from a new start, and most tasks that they evaluate at most; twice as many for one of the
        best states.
    border_starts : int
        Runs from new starts before the best states are annealed again.
    border_new : float
        Fraction of the later runs that have a new start.
    border_pool, border_elite : int
        States that are kept, and those of them that are annealed again.
    border_limits : tuple of float
        Work limits of chunks from which each virtual stage's is drawn, as multiples of an even chunk's work.
    border_hot, border_cold : float
        First temperature of a run from a new start and last one of all, as fractions of the step time.
    border_again : tuple of float
        First temperatures of the other runs, drawn at random.
    root_search : bool
        Local search where all columns are listed and the root's gap is large.
    few_to_search : int
        Most columns after the root with which the tree closes sooner than a local search ends.
    local_cuts : int
        Path cuts that a local search keeps; of more, those that rejected a move last.
    moves, alternating_moves : tuple of float
        Cumulative fractions of moves by kind (`Line.until`), the latter where kinds alternate: there a layer that moves
        far changes the layers of every chunk between, and one in some hundred such moves is accepted; of swaps of two
        sizes, one in twenty.
    short_run : float
        Average run of layers of a kind below which kinds alternate: a chunk then seldom has one kind alone.
    root_annealing : bool
        Annealing on columns at the root.
    annealing_cold : float
        Last temperature of annealing, as a fraction of the best step time.
    annealing_hot : tuple of float
        First temperatures of successive annealing runs, as such fractions.
    annealing_runs, annealing_without_success : int
        Most such runs, and number without a better plan after which they end.
    screening_cuts, new_cuts : int
        Most path cuts at the start of annealing, and most that it adds.
    """

    slice_tasks: float = 3e7
    short_tasks: float = 4e7
    long_tasks: float = 1.6e9
    least_moves: int = 500
    short_moves: int = 10_000
    long_moves: int = 120_000
    cold: float = 5e-5
    alternating_cold: float = 7.5e-4
    hot: tuple[float, ...] = (0.03, 0.01)
    alternating_hot: tuple[float, ...] = (0.0075, 0.005)
    starts: int = 16
    start_hot: tuple[float, ...] = (0.005, 0.01, 0.005, 0.02)
    enough: int = 3
    long_searches: int = 3
    long_gain: float = 0.003
    long_share: float = 0.1
    far_gap: float = 0.02
    loose_searches: int = 24
    loose_without_success: int = 6
    loose_share: float = 0.4
    border_annealing: bool = True
    border_first_stages: int = 3
    border_first_runs: int = 6
    border_runs: int = 120
    border_without_success: int = 24
    border_first_share: float = 0.15
    border_moves: float = 25_000
    border_tasks: float = 4e8
    border_starts: int = 8
    border_new: float = 0.35
    border_pool: int = 12
    border_elite: int = 4
    border_limits: tuple[float, ...] = (1.2, 1.2, 1.2, 1.7, 2.0, 2.5)
    border_hot: float = 0.03
    border_cold: float = 3e-4
    border_again: tuple[float, ...] = (0.004, 0.01, 0.02)
    root_search: bool = True
    few_to_search: int = 500
    local_cuts: int = 400
    moves: tuple[float, ...] = (0.25, 0.5, 0.7, 0.82, 0.92, 0.92, 0.92)
    alternating_moves: tuple[float, ...] = (0.25, 0.4, 0.45, 0.45, 0.45, 0.8, 0.95)
    short_run: float = 5.0
    root_annealing: bool = True
    annealing_cold: float = 5e-5
    annealing_hot: tuple[float, ...] = (0.01, 0.003)
    annealing_runs: int = 12
    annealing_without_success: int = 3
    screening_cuts: int = 300
    new_cuts: int = 300


@dataclass(frozen=True)
class BoundsParams:
    """Parameters of the LPs, their cuts and columns, and what their dual values rule out.

    Parameters
    ----------
    price_above : int
        Most columns that an LP has from the start; with more, the others enter by reduced cost.
    priced_a_round : int
        Most columns of one stage that enter after one LP.
    strong_candidates, count_candidates : int
        Most splits of a node that are tried a few iterations, with the LP over columns (half as many with column
        generation) and with the one over counts.
    finalists, count_finalists : int
        Those of them that are tried further, likewise.
    improve_every, count_improve_every : int
        Nodes between two attempts at a better plan, likewise.
    count_lp : bool
        Where the layers are of one kind, the LP is over counts.
    half_way_cuts : bool
        The root, and nodes with the LP over counts, cut half-way between the LP's durations and the best ones found.
    most_cuts : int
        Most cuts of an LP before the slack ones are dropped; longer LPs cost more than they prove.
    known_cuts : int
        Most known paths that an LP takes a round, in addition to those found for it.
    node_stall_lps, root_stall_lps : int
        Number of last cut rounds after which progress is checked, at a node and at the root.
    node_stall_share, root_stall_share : float
        Least fraction of the gap that they must close, or the node branches.
    recent_cuts : int
        Newest cuts of the pool that are tried on a new LP point.
    most_prices : int
        Most dual values against which a set of columns is checked, the newest ones.
    most_costs : int
        Most reduced costs that are kept: fewer dual values where the columns are many.
    flow_stages : int
        Least virtual stages with which repeating patterns are bounded by the phase-flow LP and its tree; 0 for never.
    flow_chunks : int
        Least chunks for it where columns with phases are few: of fewer chunks these close the tree sooner.
    flow_columns : int
        Most choices of chunks in that LP.
    flow_nodes : int
        Nodes of its tree before columns are generated, and as many again where they are too many.
    flow_share : float
        Fraction of the remaining time for each of these.
    flow_root_lps, flow_node_lps, flow_child_lps, flow_tried_lps : int
        Most LPs at its root, at a node that is split, at one that joins the open nodes, and for a child of a split
        that is tried.
    flow_gain : float
        Fraction of the gap that a split on caps must close, or splits on phases are tried.
    flow_phases : int
        Chunks whose phases are tried as a split of a node.
    pricings : int
        Most pricings of an LP in column generation.
    pricing_lps : int
        Most LPs between two pricings.
    priced : int
        Columns of a stage that may join the LP after one pricing.
    first_of_each : int
        First columns of the LP near each part of the even work.
    first_spread : tuple of float
        These parts.
    close, loose_close : float
        Fraction of the step time between the LP's value and its bound that ends the pricing; where columns leave the
        kinds' order open, also the second fraction of the gap between the bound and the step time: their LPs are large
        and their bounds weak.
    pricing_buckets : int
        Intervals of the memory and of the work in the table of the least cost of the chunks to come.
    pricing_steps : int
        Most options that one pricing visits: about two seconds.
    """

    price_above: int = 3000
    priced_a_round: int = 60
    strong_candidates: int = 32
    count_candidates: int = 24
    finalists: int = 8
    count_finalists: int = 6
    improve_every: int = 4
    count_improve_every: int = 48
    count_lp: bool = True
    half_way_cuts: bool = True
    most_cuts: int = 120
    known_cuts: int = 4
    node_stall_lps: int = 6
    node_stall_share: float = 0.1
    root_stall_lps: int = 25
    root_stall_share: float = 0.01
    recent_cuts: int = 1200
    most_prices: int = 400
    most_costs: int = 4_000_000
    flow_stages: int = 3
    flow_chunks: int = 20
    flow_columns: int = 30_000
    flow_nodes: int = 400
    flow_share: float = 0.6
    flow_root_lps: int = 120
    flow_node_lps: int = 12
    flow_child_lps: int = 4
    flow_tried_lps: int = 3
    flow_gain: float = 0.02
    flow_phases: int = 2
    pricings: int = 60
    pricing_lps: int = 40
    priced: int = 40
    first_of_each: int = 8
    first_spread: tuple[float, ...] = (0.85, 0.9, 0.95, 1.0, 1.05, 1.1)
    close: float = 1e-5
    loose_close: float = 0.02
    pricing_buckets: int = 256
    pricing_steps: int = 100_000_000


@dataclass(frozen=True)
class MilpParams:
    """Parameters of the compact MILP.

    Parameters
    ----------
    few_chunks : int
        Most chunks with which the compact MILP takes over problems with too many columns to list and, with one
        recompute choice for all chunks, those that a tree closes slowly: there it proves more than trees of lower
        targets do. 0 for never.
    first_nodes : int
        Most nodes of the first round.
    nodes_growth, growth_without_success : int
        Growth of the limit from round to round, the second where a round found no new path: every round rebuilds its
        tree.
    narrowing : bool
        The chunks with no fewer layers than the recompute count are found first.
    narrowed_share : float
        Largest fraction of the remaining time for that.
    close_relaxation : float
        Gap between the relaxation's bound and the best plan, as a fraction of the step time, below which ranges are not
        narrowed.
    """

    few_chunks: int = 24
    first_nodes: int = 2000
    nodes_growth: int = 2
    growth_without_success: int = 8
    narrowing: bool = True
    narrowed_share: float = 0.7
    close_relaxation: float = 2e-3


@dataclass(frozen=True)
class SolvingParams:
    """Parameters of solves in subproblems: places, and recompute choices that apply to all chunks.

    Parameters
    ----------
    first_places : int
        Most places of a kind for which a first plan is searched.
    least_untried : int
        Least number of places that a first time slice leaves time for, where every slice starts from nothing.
    first_share : float
        Fraction of the limit for the problem without the rule, and for the one in which choices cost nothing.
    relaxed_share : float
        Fraction of the remaining time for the problem without costs of choices, while a plan is as good as its best
        one.
    great, many : int
        Counts from this multiple of an even chunk's layers are tried as one, where there are at least `many`: with
        smaller counts among them the relaxed problem is far from each.
    near : float
        Fraction of the step time to beat that later time slices leave open until no choice is open by more. Under a
        time limit all choices come near the step time before one reaches it, because the last of a gap takes longest.
    further, further_without_progress : float
        If counts tried as one have a better plan or stay open, counts up to this fraction more are tried one by one;
        where probing rules out next to nothing, up to the second fraction more: the next ones are likely to fail, too,
        and to cost the time of two or three counts.
    second : float
        Fraction of the limit for the one later time slice of counts tried as one.
    counted_share : float
        Fraction of the limit for the problem without the rule, where each choice has the LP over counts: those trees
        take a fraction of the time of its own tree, which is not resumed either.
    """

    first_places: int = 3
    least_untried: int = 3
    first_share: float = 0.15
    relaxed_share: float = 0.85
    great: int = 2
    many: int = 4
    near: float = 0.004
    further: float = 0.25
    further_without_progress: float = 0.5
    second: float = 0.25
    counted_share: float = 0.05


@dataclass(frozen=True)
class SolverParams:
    """The records of all sub-packages."""

    tree: TreeParams = field(default_factory=TreeParams)
    heuristics: HeuristicsParams = field(default_factory=HeuristicsParams)
    bounds: BoundsParams = field(default_factory=BoundsParams)
    milp: MilpParams = field(default_factory=MilpParams)
    solving: SolvingParams = field(default_factory=SolvingParams)

    def items(self) -> Iterator[tuple[str, object]]:
        """Name and value of every parameter: ``tree.samples``, 50."""
        for part in fields(self):
            record = getattr(self, part.name)
            yield from ((f"{part.name}.{one.name}", getattr(record, one.name)) for one in fields(record))

    def changed(self) -> dict[str, object]:
        """The values that differ from the defaults, by name."""
        default = dict(DEFAULT_PARAMS.items())
        return {name: value for name, value in self.items() if value != default[name]}

    def with_value(self, name: str, value: object) -> SolverParams:
        """A copy with another value of one parameter.

        Raises
        ------
        ValueError
            If there is no such parameter, or the value is of another type; the message names similar parameters.
        """
        known = dict(self.items())
        if name not in known:
            near = near_names(name, known)
            raise ValueError(f"no parameter is named {name!r}" + (f"; similar: {', '.join(near)}" if near else ""))
        of = type(known[name])
        if of is float and type(value) is int:
            value = float(value)
        if type(value) is not of:
            raise ValueError(f"{name} must be of type {of.__name__}, found {value!r}")
        part, one = name.split(".")
        return replace(self, **{part: replace(getattr(self, part), **{one: value})})


DEFAULT_PARAMS = SolverParams()
"""Today's values."""


def parse_params(text: str, params: SolverParams = DEFAULT_PARAMS) -> SolverParams:
    """Read ``name=value`` pairs, separated by commas; several numbers of one parameter by ``:``.

    Raises
    ------
    ValueError
        As from `SolverParams.with_value`, or if a value is not a number.
    """
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = (part.strip() for part in pair.partition("="))
        if not separator:
            raise ValueError(f"{pair!r} must be name=value")
        known = dict(params.items())
        params = params.with_value(name, _value_of(name, value, known[name]) if name in known else value)
    return params


def _value_of(name: str, text: str, like: object) -> object:
    """The value of a text, of the type of `like`."""
    words = {"true": True, "false": False, "1": True, "0": False}
    try:
        if isinstance(like, bool):
            return words[text.lower()]
        if isinstance(like, tuple):
            return tuple(float(part) for part in text.split(":"))
        number = float(text)
        if isinstance(like, int):
            if number != int(number):
                raise ValueError
            return int(number)
        return number
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{name} must be of type {type(like).__name__}, found {text!r}") from None
