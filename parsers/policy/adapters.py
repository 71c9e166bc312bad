"""Low-rank adapters that a policy's options state."""

from __future__ import annotations

from taylor.parsers.policy.options import NOTHING, Options, items_of
from taylor.register.adapters import Adapters, named_targets

_MOST_RANK = 2**16


def adapters_of(
    options: Options,
    *,
    rank: str,
    targets: str,
    usual: tuple[str, ...],
    everything: tuple[str, ...],
    excluded: str = "",
    dropout: str = "",
    base_bytes: float | None = None,
    gathers: bool = False,
    usual_beside_experts: bool = True,
    decomposed: str = "",
) -> Adapters:
    """Adapters by the keys of their rank, modules and dropout.

    Parameters
    ----------
    usual : tuple of str
        Targets where no module is named.
    everything : tuple of str
        Targets of ``all-linear``.
    excluded : str
        Key of the modules that have none.
    base_bytes, gathers
        See `Adapters`. Adapters that gather are Megatron-Bridge's, of which the experts of a rank share one (067f987d
        src/megatron/bridge/peft/lora.py:156).
    usual_beside_experts : bool
        Off: routed experts have no adapters where no module is named.
    decomposed : str
        Key of the switch that makes them DoRA's.

    Raises
    ------
    InputError
        When a module or a value is not known.
    """
    written = str(options.text(targets, default="") or "") if targets else ""
    names = [] if written.lower() in NOTHING else items_of(written)
    where = {"file": options.file, "field": targets}
    chosen = named_targets(names, everything, **where) if names else usual
    left_out = str(options.text(excluded, default="") or "") if excluded else ""
    if left_out.lower() not in NOTHING:
        without = [name.strip("*.") for name in items_of(left_out) if "visual" not in name and "vision" not in name]
        bare = named_targets(without, None, file=options.file, field=excluded)
        chosen = tuple(target for target in chosen if target not in bare)
    dropped = dropout != "" and float(options.number(dropout, default=0.0)) > 0
    return Adapters(
        int(options.integer(rank, high=_MOST_RANK)),
        chosen,
        dropped,
        base_bytes,
        gathers,
        shared_by_experts=gathers,
        beside_experts=bool(names) or usual_beside_experts,
        decomposed=decomposed != "" and options.is_on(decomposed),
    )
