"""Adds the choices by module that a job requests to a pipeline problem: recompute of some, offload of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from taylor.base.errors import InputError
from taylor.cost_model.choices.module_choices import (
    ModuleChoice,
    ModuleCost,
    ModuleWords,
    choice_name,
    module_choices,
    stated_choices,
    words_of,
)
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.offload import HOST_LINK_SHARE
from taylor.cost_model.memory.statics import MIB
from taylor.cost_model.time.tail import CARDS_A_HOST, HOST_UPDATE_MS
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.plan import FULL, NONE, RECOMPUTE_MODES, SELECT, Grid, PipelinePlan, as_grid, kind_of
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.register.device import DeviceSpec
from taylor.workflows.statement.options import AskedModules
from taylor.workflows.statement.problem import uniform_choices

HOST_SHARE = 0.8
"""Fraction of a device's part of the host memory that offload may take. No source; the system and the data loaders
need the rest.
"""


def offered_words(config: TrainingConfig, device: DeviceSpec, asked: AskedModules) -> ModuleWords | None:
    """Requested modules that the job's file can name; None where none are requested.

    Raises
    ------
    InputError
        When the launcher's files cannot state it, or the register has no link from the device to its host.
    """
    if not (asked.recompute or asked.offload):
        return None
    launcher = launcher_of(config)
    words = launcher.module_words(config)
    flags = {"--recompute_modules": (asked.recompute, words.recompute), "--offload": (asked.offload, words.offload)}
    for flag, (wanted, known) in flags.items():
        if wanted and not known:
            raise InputError(
                f"cannot be said by {launcher.title}",
                file=config.path,
                field=flag,
                value="y",
                cure="plan a Megatron-LM script, or leave it out",
            )
    if asked.offload:
        require_host_link(device, "--offload")
    return replace(
        words,
        recompute=words.recompute if asked.recompute else {},
        offload=words.offload if asked.offload else {},
    )


def require_host_link(device: DeviceSpec, flag: str) -> None:
    """Refuse a flag that moves something to the host where the device's host link is not known.

    Raises
    ------
    InputError
    """
    if device.host_link_gb_s is None:
        raise InputError(
            f"needs the bandwidth between {device.name} and its host, which no source states",
            field=flag,
            value="y",
            cure="register the device with its host_link_gb_s, or measure it with taylor profile hardware",
        )


def with_host_priced(config: TrainingConfig, device: DeviceSpec) -> TrainingConfig:
    """Configuration whose figures include what lies on the host: of the file's plan, and of its optimizer.

    Without a known host link, the memory of what is moved counts and its time does not: it stays among the flags that
    the figures lack. Where the file fixes no plan, or its plan recomputes every layer in full, no module is moved and
    the flags stay there too.
    """
    plan, moved, priced = config.plan, config.moved, config.linked
    if moved is not None and (plan is None or plan.recomputed(FULL) == _body(config, plan)):
        config = config.replace(moved=None)
    elif moved is not None:
        priced += moved.flags
    if device.host_link_gb_s is None:
        return config
    return config.replace(unmodelled=tuple(each for each in config.unmodelled if each.name not in priced))


def own_modules(config: TrainingConfig) -> ModuleWords | None:
    """Modules that the plan in the file recomputes and those it moves; None where it moves none."""
    if config.moved is None or config.plan is None or config.by_module is not None:
        return None
    known = launcher_of(config).module_words(config)
    parts = config.rules.recomputed_parts if config.plan.uses(SELECT) else ()
    again = {word: of for word, of in known.recompute.items() if set(of) <= set(parts)}
    return ModuleWords(again, {word: part for word, part in known.offload.items() if word in config.moved.words})


def own_plan(config: TrainingConfig) -> PipelinePlan | None:
    """Plan in the file, with layers by their recomputed modules where these differ, or with layers without full
    recompute under the choice of what the file offloads.
    """
    if config.by_module is not None:
        return config.by_module
    words, plan = own_modules(config), config.plan
    if words is None or plan is None:
        return plan
    full = plan.recomputed(FULL)
    rest = np.subtract(_body(config, plan), full)
    name = choice_name(tuple(words.recompute), tuple(words.offload))
    return PipelinePlan(plan.layers, {FULL: full, name: as_grid(rest.tolist())})


def known_plan(config: TrainingConfig, words: ModuleWords | None) -> PipelinePlan | None:
    """Plan in the file in terms of the requested choices by module: selective recompute is one of them."""
    plan = own_plan(config)
    if config.by_module is not None or plan is None or not (sets := _own_sets(config, words)):
        return plan
    grids = {choice_name(sets[0], ()) if mode == SELECT else mode: grid for mode, grid in plan.recompute.items()}
    return PipelinePlan(plan.layers, grids)


def _body(config: TrainingConfig, plan: PipelinePlan) -> Grid:
    return plan.total_layers([kind for kind in plan.layers if kind_of(kind) not in config.pinned_kinds])


def with_module_choices(
    problem: PipelineProblem, config: TrainingConfig, device: DeviceSpec, words: ModuleWords | None
) -> PipelineProblem:
    """Problem with choices by module, whose costs follow the analytical model in proportion to its times and memory.

    One of them is the file's where that moves something, whether or not others are offered. The transfer buffer to and
    from the host, one layer's part, is spread over a stage's layers of an even split.
    """
    own = own_modules(config)
    if words is None and own is None and config.by_module is None:
        return problem
    if config.by_module is not None or (words is not None and words.nested):
        found = _nested_choices(config, device, words)
        if SELECT in problem.searched_modes and launcher_of(config).module_words(config).nested:
            # Its modules are among the choices, each of which must contain the next one's.
            problem = problem.replace(unsearched=(*problem.unsearched, SELECT))
    else:
        found = module_choices(config.model, config.strategy, config.rules, device, words or ModuleWords(), own=own)
    per_stage = max(1.0, problem.layers / problem.stages)
    kinds = tuple(_with_choices(kind, found, config, per_stage) for kind in problem.kinds)
    names = tuple(one.name for one in found)
    modes = (*problem.searched_modes, *names)
    chosen = problem.replace(kinds=kinds, choices=names, uniform_recompute=uniform_choices(config, modes))
    return with_host_limit(chosen, device)


def with_host_limit(problem: PipelineProblem, device: DeviceSpec) -> PipelineProblem:
    """Problem with the limit of what its choices move to the host, where a plan may exceed it."""
    offloads = any(one.host_mib for kind in problem.free_kinds for one in kind.choices.values())
    limit = host_limit_mib(device) if offloads else None
    if limit is None or max(_most_on_host(problem)) <= limit:
        return problem
    return problem.replace(host_limit_mib=(limit,) * problem.stages)


def _nested_choices(config: TrainingConfig, device: DeviceSpec, words: ModuleWords | None) -> list[ModuleChoice]:
    """Requested choices with the file's among them, or the file's alone."""
    launcher, job = launcher_of(config), (config.model, config.strategy, config.rules, device)
    names = [] if config.by_module is None else [m for m in config.by_module.recompute if m not in RECOMPUTE_MODES]
    known = replace(launcher.module_words(config), offload=launcher.swap_parts)
    if words is None:
        return stated_choices(*job, known, names)
    found = module_choices(*job, words, through=_own_sets(config, words))
    found += stated_choices(*job, known, [name for name in names if words_of(name)[1]])
    return sorted(found, key=lambda one: (-len(one.recompute), -len(one.offload)))


def _own_sets(config: TrainingConfig, words: ModuleWords | None) -> list[tuple[str, ...]]:
    """Sets of recomputed modules in layers of the plan in the file, by rising size, where choices are nested.

    Where choices are requested, selective recompute of one set alone is among them, so that none is worse.
    """
    if config.by_module is None:
        if words is None or not words.nested or config.plan is None or not config.plan.uses(SELECT):
            return []
        parts = set(config.rules.recomputed_parts)
        selective = tuple(word for word, of in words.recompute.items() if set(of) <= parts)
        return [selective] if selective else []
    sets = {words_of(mode)[0] for mode in config.by_module.recompute if mode not in RECOMPUTE_MODES}
    return sorted(filter(None, sets), key=len)


def _most_on_host(problem: PipelineProblem) -> list[float]:
    """Host memory that no plan exceeds on each stage, MiB: all the layers that the device can hold, all of them
    moved.
    """
    lightest = max(1e-9, min(kind.least_mib for kind in problem.free_kinds))
    most = max(one.host_mib for kind in problem.free_kinds for one in kind.choices.values())
    free = (limit - static for limit, static in zip(problem.limit_mib, problem.static_mib, strict=True))
    most_layers = [min(problem.layers, max(0.0, left) // lightest) for left in free]
    alive = [float(vectors.sum(axis=1).max()) for vectors in alive_vectors(schedule_of(problem))]
    return [layers * n * most for layers, n in zip(most_layers, alive, strict=True)]


def host_limit_mib(device: DeviceSpec) -> float | None:
    """Host memory that offload of one device may take; None where the register states none."""
    return None if device.host_memory_mib is None else HOST_SHARE * device.host_memory_mib


def assumptions(device: DeviceSpec) -> list[str]:
    """Sentence for each offload value that no input gave."""
    limit = host_limit_mib(device)
    kept = (
        "no host memory is stated, so nothing limits it"
        if limit is None
        else f"at most {limit:,.0f} MiB of the host for each device, {HOST_SHARE:.0%} of its part (assumed: the rest "
        "is the system's)"
    )
    if device.host_link_gb_s is None:
        return [f"offload: its memory alone counts, for no source states {device.name}'s link to its host; {kept}"]
    link = (
        f"{HOST_LINK_SHARE:.0%} of the {device.host_link_gb_s:g} GB/s between device and host in each direction (as "
        "measured on A100, H100 and GH200)"
    )
    return [f"offload: {link}, a layer's transfers beside one layer's computation; {kept}"]


def optimizer_assumptions(rules: TrainingRules, device: DeviceSpec) -> list[str]:
    """Sentence for the values behind the cost of an optimizer on the host; none where none is."""
    if not rules.optimizer.host_share or device.host_link_gb_s is None:
        return []
    way = f"its way over {HOST_LINK_SHARE:.0%} of the {device.host_link_gb_s:g} GB/s between device and host"
    if not rules.optimizer.host_updates:
        return [f"optimizer on the host: {way}"]
    pace = f"{HOST_UPDATE_MS * 1e6:g} s a billion parameters, for {CARDS_A_HOST} cards a host"
    return [f"optimizer on the host: {way}; the host's update takes {pace} (CPU-Adam on two Xeon 8168)"]


def _with_choices(kind: LayerKind, found: list[ModuleChoice], config: TrainingConfig, per_stage: float) -> LayerKind:
    name = kind_of(kind.name)
    activation, choices = dict(kind.activation_mib), {}
    if kind.pinned_first:  # an encoder's layers have no choices
        return unchanged_by(kind, [one.name for one in found])
    for one in found:
        # A kind without costs of its own costs as much as the body layer.
        cost = one.costs.get(name) or one.costs[config.model.body_kind]
        plain = name if name in one.costs else config.model.body_kind
        plain_mib = float(activation_bytes(config.model, plain, NONE, config.strategy, config.rules)) / MIB
        activation[one.name], choices[one.name] = priced_choice(kind, cost, plain_mib, per_stage)
    return replace(kind, activation_mib=activation, choices=choices)


def unchanged_by(kind: LayerKind, names: Sequence[str]) -> LayerKind:
    """The kind with further choices, under each of which its layers keep what they keep without any."""
    activation = {**kind.activation_mib, **dict.fromkeys(names, kind.activation_mib[NONE])}
    return replace(kind, activation_mib=activation, choices={**kind.choices, **dict.fromkeys(names, LayerChoice())})


def priced_choice(kind: LayerKind, cost: ModuleCost, plain_mib: float, per_stage: float) -> tuple[float, LayerChoice]:
    """Kept memory and other costs of a choice, with the profile's memory in place of the analytical model's."""
    scale = kind.activation_mib[NONE] / plain_mib if plain_mib else 1.0
    return scale * cost.kept_mib, LayerChoice(
        forward=cost.forward * kind.forward,
        backward=cost.backward * kind.forward,
        states_mib=scale * cost.host_mib / per_stage,
        host_mib=scale * cost.host_mib,
        link_time=cost.link * kind.forward,
    )
