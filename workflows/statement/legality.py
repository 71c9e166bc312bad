"""Legality of a stated job: the one check of every entry point before it plans, estimates or ranks."""

from __future__ import annotations

from collections.abc import Sequence

from taylor.base.errors import InputError
from taylor.base.near import did_you_mean
from taylor.nd_search.legality import LEGALITY_RULES
from taylor.nd_search.stated import Illegality, broken_in_new_releases, broken_rules, find_illegality
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.register.device import DeviceSpec
from taylor.workflows.statement.schedules import require_start

FLAG = "--allow_illegal"

_PLAIN_WORDS = {"dp": "data parallel", "vpp": "virtual stages", "gbs": "global batch", "seq": "sequence length"}


def refuse_unknown_rules(allowed: Sequence[str], config: TrainingConfig) -> None:
    """Refuse names that are neither a legality rule nor the rule that the job's file breaks.

    Raises
    ------
    InputError
        With similar names.
    """
    known = _asked_names(config)
    for name in allowed:
        if name not in known:
            cure = f"{did_you_mean(name, known)} (`taylor rules` lists them)"
            raise InputError("is no legality rule", field=FLAG, value=name, cure=cure)


def rules_waived(disabled: Sequence[str], config: TrainingConfig) -> tuple[str, ...]:
    """Return those of a search's disabled rules that apply to a stated job."""
    known = _asked_names(config)
    return tuple(name for name in disabled if name in known)


def _asked_names(config: TrainingConfig) -> list[str]:
    """Names of the rules that apply to a stated job: legality's, and those that its reader found broken."""
    return [*(rule.name for rule in LEGALITY_RULES), *(misfit.rule for misfit in config.misfits if misfit.rule)]


def require_legal(config: TrainingConfig, device: DeviceSpec, allowed: Sequence[str] = ()) -> TrainingConfig:
    """Refuse a job that its framework does not start as it is stated.

    Parameters
    ----------
    allowed : sequence of str
        Names of legality rules that the job may break.

    Returns
    -------
    TrainingConfig
        The same, with a note for each broken rule that is allowed or that only newer releases apply.

    Raises
    ------
    InputError
        With the rule, the value, the framework's file and line, and the nearest legal values; or an allowed name is
        no rule.
    """
    refuse_unknown_rules(allowed, config)
    found = find_illegality(config, device, allowed)
    if found is None or not found.rules[0].field:  # A launcher checks its arguments first.
        require_start(config, allowed)
    if found is not None:
        raise InputError(
            _problem(found),
            file=config.path,
            field=degree_words(config).get(found.field, found.field),
            value=found.value,
            cure=_cure(config, found),
            source=_rule_source(config, found),
            code="illegal",
        )
    waived = [(rule.name, rule.explanation) for rule in (broken_rules(config, device) if allowed else ())]
    waived += [(misfit.rule, f"{misfit.field} {misfit.problem}") for misfit in config.misfits]
    sentences = [f"{FLAG} {name}: the framework does not start this job ({why})" for name, why in waived]
    sentences += [rule.explanation for rule in broken_in_new_releases(config, device)]
    return config.replace(notes=(*config.notes, *sentences))


def why_illegal(config: TrainingConfig, device: DeviceSpec) -> str | None:
    """Clause on why a job does not start as its file states it; None where it does."""
    found, misfits = find_illegality(config, device), config.misfits
    if misfits and (found is None or not found.rules[0].field):
        return f"{misfits[0].field} {misfits[0].value} {misfits[0].problem}"
    if found is None:
        return None
    field = degree_words(config).get(found.field, found.field)
    return f"{field} {found.value} {_problem(found)}"


def degree_words(config: TrainingConfig) -> dict[str, str]:
    """Names of the degrees in the job's files, by `Strategy`'s name."""
    return {**_PLAIN_WORDS, **launcher_of(config).degree_words}


def _problem(found: Illegality) -> str:
    first, *others = found.rules
    also = f"; also broken: {', '.join(rule.name for rule in others)}" if others else ""
    return f"breaks the rule {first.name}: {first.explanation}{also}"


def _cure(config: TrainingConfig, found: Illegality) -> str:
    """The nearest legal values, the first rule's source, and the flag that plans the job anyway."""
    words = degree_words(config)
    by_field: dict[str, list[str]] = {}
    for field, value in found.nearest:
        by_field.setdefault(field, []).append(str(value))
    options = [f"{words.get(field, field)} {' or '.join(values)}" for field, values in by_field.items()]
    near = f"nearest legal: {', or '.join(options)}" if options else found.rules[0].relax
    waive = f"{FLAG} {','.join(rule.name for rule in found.rules)} plans the job anyway"
    return f"{near}; source: {_rule_source(config, found)}; {waive}"


def _rule_source(config: TrainingConfig, found: Illegality) -> str:
    """The framework's file and line of the first broken rule."""
    return config.rules.framework.own_checks(found.rules[0].source)
