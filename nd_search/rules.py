"""Rules of a search: those shipped, a user's own, those that apply, and their verdict on a table."""

from __future__ import annotations

from typing import Iterable, Sequence

import numpy as np

from taylor.base.errors import InputError
from taylor.base.near import did_you_mean
from taylor.base.plugins import at_fault
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.legality import LEGALITY_RULES
from taylor.nd_search.options import SP_RULE, SearchContext
from taylor.nd_search.rule import EXPERIENCE, Mask
from taylor.nd_search.rule import Rule as Rule  # a user's rules import it from here

EXPERIENCE_RULES: tuple[Rule, ...] = (
    Rule(
        "tp-within-node",
        "tp divides the cards of a node (a supernode is one): its traffic stays on the fast links",
        lambda t, c: c.device.devices_per_node % t.tp == 0,
        EXPERIENCE,
        relax="search smaller tp, or disable the rule",
    ),
    Rule(
        SP_RULE,
        "sequence parallel is on where tp > 1: it saves memory at no traffic of its own",
        lambda t, c: t.sp | (t.tp == 1),
        EXPERIENCE,
        relax="pin sp=1, or disable the rule",
    ),
    Rule(
        "cp-keeps-long-pieces",
        "a context rank keeps at least 1024 tokens: shorter pieces cannot hide the exchange",
        lambda t, c: (t.cp == 1) | (c.rules.seq_length // t.cp >= 1024),
        EXPERIENCE,
        relax="search smaller cp, or disable the rule",
    ),
    Rule(
        "ep-in-dp-tp-of-new-releases",
        "ep divides dp * tp: MindFormers 1.7 and later do not start otherwise, 1.6 does",
        lambda t, c: (t.dp * t.tp) % t.ep == 0,
        EXPERIENCE,
        applies=lambda c: (
            c.model.moe is not None and c.rules.core_models and "ep-in-dp-tp" in c.rules.framework.legality
        ),
        relax="search smaller ep or pp, or disable the rule for MindFormers 1.6",
    ),
    Rule(
        "moe-sp-of-new-releases",
        "models of the old classes with experts have sequence parallel on where tp > 1: MindFormers 1.6 and later do "
        "not start otherwise, 1.3 to 1.5 do",
        lambda t, c: t.sp | (t.tp == 1),
        EXPERIENCE,
        applies=lambda c: (
            c.model.moe is not None and not c.rules.core_models and "ep-in-dp-tp" in c.rules.framework.legality
        ),
        relax="do not pin sp=0, search tp = 1, or disable the rule for MindFormers before 1.6",
        source="MindFormers r1.6.0 mindformers/tools/check_rules.py:146 (1.6 to master)",
    ),
    Rule(
        "zero-bubble-of-new-releases",
        "the zero-bubble V schedule has 2 * pp micro-batches: newer MindSpore does not start with fewer, older does",
        lambda t, c: t.micro_batches >= 2 * t.pp,
        EXPERIENCE,
        applies=lambda c: c.schedule.name == "zero_bubble_v" and not c.rules.core_models,
        relax="raise --gbs, or disable the rule for an older MindSpore",
        source=(
            "MindSpore master, end of 2025, mindspore/ccsrc/frontend/parallel/pipeline_transformer/"
            "pipeline_interleave.cc, LabelMicroBatch (not yet in spring 2025)"
        ),
    ),
    Rule(
        "frozen-layers-on-one-stage",
        "frozen layers are planned on one stage: in a pipeline a gradient passes through those of later stages too",
        lambda t, c: t.pp == 1,
        EXPERIENCE,
        applies=lambda c: any(kind.frozen for kind in c.model.kinds),
        relax="let all layers train, or pin pp=1",
        source="ms-swift 3602360a swift/megatron/arguments/megatron_args.py:473",
    ),
    Rule(
        "pipeline-mostly-busy",
        "fill and drain, (pp - 1) / (vpp * micro_batches + pp - 1), stay below 40 % of a step",
        lambda t, c: 10 * (t.pp - 1) <= 4 * (t.vpp * t.micro_batches + t.pp - 1),
        EXPERIENCE,
        relax="raise --gbs, search smaller pp or dp, or disable the rule",
    ),
)


OF_NEW_RELEASES = tuple(rule for rule in EXPERIENCE_RULES if rule.name.endswith("-of-new-releases"))
"""Rules that newer releases of a framework have and older ones do not: a stated job that breaks one gets a note."""


def built_in_rules() -> tuple[Rule, ...]:
    """All shipped rules, legality first."""
    return LEGALITY_RULES + EXPERIENCE_RULES


_SHIPPED = frozenset(built_in_rules())


def select_rules(
    context: SearchContext, disabled: Sequence[str] = (), user_rules: Iterable[Rule] = ()
) -> tuple[Rule, ...]:
    """Rules that apply to this search, in order; a user's rule replaces the built-in one of its name.

    Raises
    ------
    InputError
        When a disabled name is no rule.
    """
    by_name = {rule.name: rule for rule in built_in_rules()}
    by_name.update({rule.name: rule for rule in user_rules})
    for name in disabled:
        if name not in by_name:
            part = [known for known in by_name if name in known or known in name]
            cure = f"{did_you_mean(name, part or by_name)} (`taylor rules` lists them)"
            raise InputError("is no rule", field="--disable_rule", value=name, cure=cure)
    return tuple(rule for rule in by_name.values() if rule.name not in disabled and rule.concerns(context))


def judge(rule: Rule, table: StrategyTable, context: SearchContext) -> Mask:
    """Mask of the rule over a table, checked where the rule is a user's.

    Raises
    ------
    InputError
        When a user's rule raises, or gives no boolean array [n].
    """
    if rule in _SHIPPED:
        return rule.keep(table, context)
    try:
        mask = np.asarray(rule.keep(table, context))
    except Exception as error:  # see _rules_of
        plugin = at_fault(error)
        cure = None if plugin is None else f"--disable_rule {rule.name}; it is one of the {plugin}"
        raise InputError(f"fails: {type(error).__name__}: {error}", field=f"rule {rule.name}", cure=cure) from error
    if mask.dtype != np.bool_ or mask.shape != (len(table),):
        raise InputError(
            f"must give a boolean array [{len(table)}]", field=f"rule {rule.name}", value=(str(mask.dtype), mask.shape)
        )
    return mask


def list_rules(user_rules: Iterable[Rule] = ()) -> str:
    """One line a rule, for `--list_rules`: name, kind, framework, explanation, and the checks that it represents."""
    rules = [*built_in_rules(), *user_rules]
    width = max(len(rule.name) for rule in rules)
    return "\n".join(
        f"{rule.name:<{width}}  {rule.kind:<10}  {'/'.join(rule.frameworks) or 'all':<22}  {rule.explanation}"
        + (f" [{rule.source}]" if rule.source else "")
        for rule in rules
    )
