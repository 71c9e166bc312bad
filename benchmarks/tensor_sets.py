"""Random small layers: the best sets of saved tensors to keep, make again and move, beside every set there is.

    python -m benchmarks.tensor_sets [--count 2000] [--seed 1]

Each layer has up to eight operators in a random graph, of which some save nothing. The front of
`cost_model.choices.tensor_sets` is compared with that of all sets, each run backward operator by operator with its live
tensors in hand. A row is one portion; the exit code is 1 when any front differs.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import numpy as np

from taylor.cost_model.choices.layer_graph import LayerGraph, Operator
from taylor.cost_model.choices.tensor_sets import LayerTimes, tensor_front

KEEP, AGAIN, MOVE = range(3)
PORTION = 100


def random_graph(rng: np.random.Generator) -> LayerGraph:
    """A small layer: operators that read earlier tensors, make one or two, and save some of either."""
    count = int(rng.integers(2, 9))
    tensors = int(rng.integers(1, 3))
    operators: list[Operator] = []
    entering = tensors
    for place in range(count):
        inputs = rng.choice(tensors, size=min(tensors, int(rng.integers(1, 4))), replace=False)
        outputs = tuple(range(tensors, tensors + int(rng.integers(1, 3))))
        near = [*map(int, inputs), *outputs]
        saves = tuple(tensor for tensor in near if rng.random() < 0.45)
        tensors += len(outputs)
        ms = float(rng.choice([0.0, 0.5, 1.0, 2.0, 3.0, 7.0]))
        operators.append(Operator(f"o{place}", tuple(map(int, inputs)), outputs, saves, ms))
    sizes = tuple(map(float, rng.choice([0.5, 1.0, 2.0, 3.0, 5.0, 8.0], size=tensors)))
    gradients = tuple(size * bool(rng.random() < 0.8) * float(rng.choice([0.0, 1.0])) for size in sizes)
    saved = {tensor for one in operators for tensor in one.saves}
    if len(saved) > 7 or not saved or (rng.random() < 0.9 and saved <= set(range(entering))):
        return random_graph(rng)
    return LayerGraph(tuple(operators), sizes, gradients)


def random_times(rng: np.random.Generator) -> LayerTimes:
    """Times of a layer, and a link that is missing, slow or fast."""
    rate = rng.choice([0.0, 0.3, 1.0, 4.0])
    return LayerTimes(float(rng.choice([2.0, 5.0, 9.0])), float(rng.choice([3.0, 8.0])), float(rate) or None)


def run_backward(graph: LayerGraph, choice: dict[int, int]) -> tuple[float, bool] | None:
    """Time of what runs again, and whether every point of the backward fits; None where a tensor cannot be made."""
    producer = {tensor: place for place, one in enumerate(graph.operators) for tensor in one.outputs}
    begun: dict[int, int] = {}
    ended: dict[int, int] = {}
    stored = {tensor for tensor, what in choice.items() if what != AGAIN}
    for tensor in stored:
        begun[tensor] = len(graph.operators) - 1
    time, ran = 0.0, set()

    def fetch(tensor: int, now: int) -> bool:
        nonlocal time
        if tensor not in begun:
            if tensor not in producer:
                return False
            place = producer[tensor]
            if place not in ran:
                ran.add(place)
                time += graph.operators[place].ms
                if not all([fetch(one, now) for one in graph.operators[place].inputs]):
                    return False
            begun[tensor] = now
        ended[tensor] = now
        return True

    for now in range(len(graph.operators) - 1, -1, -1):
        for tensor in graph.operators[now].saves:
            if not fetch(tensor, now):
                return None
    for place in ran:  # what anyone needs later of an operator's one run lives from that run on
        made = [tensor for tensor in graph.operators[place].outputs if tensor in begun and tensor not in stored]
        first = max(begun[tensor] for tensor in made)
        for tensor in made:
            begun[tensor] = first
    live = [
        sum(graph.sizes[tensor] for tensor in begun if ended[tensor] <= now <= begun[tensor])
        for now in range(len(graph.operators))
    ]
    gradients = _gradients(graph)
    whole_mib = [
        gradients[now]
        + sum(
            graph.sizes[tensor]
            for tensor in choice
            if min(place for place, one in enumerate(graph.operators) if tensor in one.saves) <= now
        )
        for now in range(len(graph.operators))
    ]
    entering = sum(graph.sizes[tensor] for tensor in choice if tensor not in producer)
    limit = sum(graph.sizes[tensor] for tensor in stored) + max(whole_mib) - entering
    return time, all(live[now] + gradients[now] <= limit + 1e-6 for now in range(len(live)))


def _gradients(graph: LayerGraph) -> list[float]:
    alive = []
    for now in range(len(graph.operators)):
        total = 0.0
        for tensor, size in enumerate(graph.gradients):
            makers = [place for place, one in enumerate(graph.operators) if tensor in one.outputs]
            readers = [place for place, one in enumerate(graph.operators) if tensor in one.inputs]
            if (makers[0] if makers else 0) <= now <= (readers[-1] if readers else len(graph.operators) - 1):
                total += size
        alive.append(total)
    return alive


def front_of_all(graph: LayerGraph, times: LayerTimes) -> list[tuple[float, float]]:
    """Time and MiB kept of the front of all sets."""
    saved = sorted({tensor for one in graph.operators for tensor in one.saves})
    made = {tensor for one in graph.operators for tensor in one.outputs}
    points = []
    options = [(KEEP, AGAIN, MOVE) if times.mib_per_ms else (KEEP, AGAIN)] * len(saved)
    for kinds in itertools.product(*options):
        choice = dict(zip(saved, kinds, strict=True))
        if any(what == AGAIN and tensor not in made for tensor, what in choice.items()):
            continue
        found = run_backward(graph, choice)
        if found is None or not found[1]:
            continue
        host = sum(graph.sizes[tensor] for tensor, what in choice.items() if what == MOVE)
        kept = sum(graph.sizes[tensor] for tensor, what in choice.items() if what == KEEP)
        link = host / times.mib_per_ms if times.mib_per_ms else 0.0
        time = found[0] + max(0.0, link - times.forward) + max(0.0, link - times.backward - found[0])
        points.append((round(time, 9), kept))
    front: list[tuple[float, float]] = []
    for time, kept in sorted(points):
        if not front or kept < front[-1][1] - 1e-9:
            front.append((time, kept))
    return front


def difference(number: int, seed: int) -> str:
    """What is different about a random layer; empty for nothing."""
    rng = np.random.default_rng([seed, number])
    graph, times = random_graph(rng), random_times(rng)
    found = [(one.added_ms, one.kept_mib) for one in tensor_front(graph, times)]
    wanted = front_of_all(graph, times)
    if len(found) == len(wanted) and np.allclose(found, wanted, rtol=1e-9, atol=1e-7):
        return ""
    return f"layer {number}: {found} is not {wanted}"


def main(arguments: list[str] | None = None) -> int:
    """Compare and print; 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    wrong = 0
    for start in range(0, chosen.count, PORTION):
        numbers = range(start, min(start + PORTION, chosen.count))
        found = [text for number in numbers if (text := difference(number, chosen.seed))]
        wrong += len(found)
        print("\n".join([*found[:3], f"{numbers.stop} layers, {wrong} differ"]), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
