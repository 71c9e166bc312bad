"""The stage of every block of a nanotron model: dealt by their cost, by no option.

Source: huggingface/nanotron 2411b022 src/nanotron/models/base.py:190-217.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate


def stages_of_blocks(costs: Sequence[float], stages: int) -> list[int]:
    """The stage of every block in model order.

    A stage takes blocks until their costs, with those of all stages before it, pass its share of the whole; the block
    that passes it is still the stage's.
    """
    sums = list(accumulate(costs))
    shares = [sums[-1] * ((stage + 1) / stages) for stage in range(stages)]
    stage, places = 0, []
    for total in sums:
        places.append(stage)
        if total > shares[stage]:
            stage += 1
    return places


def layers_of_stages(layer: float, head: float, layers: int, stages: int) -> list[int]:
    """Layers of every stage.

    Raises
    ------
    ValueError
        When there are more stages than blocks, or the last stage lies idle: the head's stage is an earlier one.
    """
    if stages > layers + 1:
        raise ValueError(f"{stages} stages are more than the {layers} layers and the head can fill")
    places = stages_of_blocks([0.0, *[layer] * layers, 0.0, head], stages)
    if places[-1] != stages - 1:
        raise ValueError(
            f"nanotron puts the head on stage {places[-1]}, and the stages behind it have no block: "
            "fewer stages, or more layers, use all"
        )
    counts = Counter(places[1:-2])
    return [counts[stage] for stage in range(stages)]
