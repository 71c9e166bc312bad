"""Record the passes of a step of MindSpeed: its own functions run with stand-ins for torch, Megatron-LM and the device.

    python -m benchmarks.mindspeed.own_passes --mindspeed PATH

Needs a checkout of MindSpeed at 028de58c, and nothing of the product. Writes
tests/pipeline_solver/mindspeed_passes.yaml:

- `dualpipev`, `dw_detach`: the tasks of every stage, from ``forward_backward_pipelining_with_cutinhalf``;
- `pairs`, `kinds`, `exchanges`: what the layers of a combined pass do, from fb_overlap's blocks and layers;
- `bubble`: micro-batches that are alive under ``--recompute-in-bubble``, from ``forward_backward_ripipe_pipelining``;
- `sources`: file and line of each.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import yaml

from benchmarks.mindspeed.own_exchanges import OVERLAP, exchanges
from benchmarks.mindspeed.stand_ins import Settings, alone, torch_alone

RECORD = Path(__file__).parents[2] / "tests" / "pipeline_solver" / "mindspeed_passes.yaml"
COMMIT = "028de58c"
_DUALPIPEV = "mindspeed/core/pipeline_parallel/dualpipev/dualpipev_schedules.py"
_RIPIPE = "mindspeed/core/pipeline_parallel/ripipe_schedules.py"
_CHECKPOINTS = "mindspeed/core/tensor_parallel/checkpoint_manager.py"


def source_of(function: Any) -> str:
    """File and line of a function of the checkout."""
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def ranks(size: int, rank: int, chunks: int = 1) -> Any:
    """Megatron-LM's ``parallel_state`` of one stage."""
    state = SimpleNamespace(chunk=0)

    def first(ignore_virtual: bool = False) -> bool:
        return rank == 0 and (ignore_virtual or chunks == 1 or state.chunk == 0)

    def last(ignore_virtual: bool = False) -> bool:
        return rank == size - 1 and (ignore_virtual or chunks == 1 or state.chunk == chunks - 1)

    return SimpleNamespace(
        get_pipeline_model_parallel_world_size=lambda: size, get_pipeline_model_parallel_rank=lambda: rank,
        get_tensor_model_parallel_world_size=lambda: 1, get_context_parallel_world_size=lambda: 1,
        get_virtual_pipeline_model_parallel_world_size=lambda: chunks,
        get_virtual_pipeline_model_parallel_rank=lambda: state.chunk,
        set_virtual_pipeline_model_parallel_rank=lambda chunk: setattr(state, "chunk", chunk),
        is_pipeline_first_stage=first, is_pipeline_last_stage=last,
    )  # fmt: skip


# DualPipeV -------------------------------------------------------------------------------------------------------


class Graph(list):  # type: ignore[type-arg]
    """The saved graph of a chunk's forward, which knows its chunk and micro-batch."""

    def __init__(self, chunk: int, micro_batch: int):
        super().__init__([SimpleNamespace(unperm2_graph=(None, MagicMock()))])
        self.of = chunk, micro_batch


def dualpipev(checkout: Path, stages: int, micro_batches: int, rank: int, detach: bool = False) -> str:
    """Tasks of a stage, a letter each, small for its first chunk and capital for its second.

    ``f`` a forward, ``b`` a backward that runs whole, ``d`` one without its weight gradient, ``w`` that weight
    gradient; ``x`` and ``X`` one pass of a forward of the first or the second chunk with a backward of the other.
    Micro-batches of a chunk follow one another in each kind of task, or `AssertionError`.
    """
    args = Settings(moe_fb_overlap=True, dualpipev_dw_detach=detach, schedules_method="dualpipev")
    store = alone(
        checkout, f"{OVERLAP}/modules/weight_grad_store.py", torch=torch_alone(), get_args=lambda: args
    ).WeightGradStore
    config = Settings(hidden_size=8, deallocate_pipeline_outputs=True)
    tasks: list[str] = []
    begun: dict[tuple[str, int], int] = {}

    def counted(kind: str, chunk: int, micro_batch: int) -> None:
        assert micro_batch == begun.get((kind, chunk), 0), f"{kind} of {micro_batch} out of turn"
        begun[kind, chunk] = micro_batch + 1

    def forward(*words: Any, current_microbatch: int, extra_block_kwargs: Any = None, **rest: Any) -> Any:
        chunk = words[1]
        micro_batch = current_microbatch - chunk * micro_batches
        counted("f", chunk, micro_batch)
        graph, output = Graph(chunk, micro_batch), MagicMock()
        if extra_block_kwargs is None:
            tasks.append("fF"[chunk])
            return (output, graph), MagicMock()
        beside, other = extra_block_kwargs["bwd_block_graphs"].of
        assert beside == 1 - chunk
        counted("b", beside, other)
        tasks.append("xX"[chunk])
        return (output, graph, MagicMock(fwd_wait_handles=None, bwd_wait_handles=None)), MagicMock()

    def backward(*words: Any) -> Any:
        if words[-1] is not None:  # else the loss alone
            chunk, micro_batch = words[-1].of
            counted("b", chunk, micro_batch)
            if store.is_decoupleBlock:
                store.put((chunk, micro_batch), None, None, False)
            tasks.append(("dD" if store.is_decoupleBlock else "bB")[chunk])
        return MagicMock()

    def weight_gradient(saved: Any) -> None:
        chunk, micro_batch = saved[0]
        tasks.append("wW"[chunk])

    store.overlap_matmul = weight_gradient
    module = alone(
        checkout, _DUALPIPEV, torch=torch_alone(), get_args=lambda: args, parallel_state=ranks(stages, rank),
        get_model_config=lambda model: config, WeightGradStore=store, forward_step_func_wrapper=lambda step: step,
        _communicate=lambda **words: (MagicMock(), MagicMock(), None),
    )  # fmt: skip
    module.forward_step_with_model_graph, module.backward_step_with_model_graph = forward, backward
    module.set_shared_embedding_from_dual_chunk = lambda *chunks: None
    module.forward_backward_pipelining_with_cutinhalf(
        forward_step_func=None, data_iterator=[None, None], model=[MagicMock(), MagicMock()],
        num_microbatches=micro_batches, seq_length=8, micro_batch_size=1,
    )  # fmt: skip
    assert all(begun[kind, chunk] == micro_batches for kind in "fb" for chunk in (0, 1))
    return "".join(tasks)


# Layers of a combined pass ---------------------------------------------------------------------------------------


class Noop:
    """An empty layer."""

    mlp = None


def layer_of(letter: str, number: int = 2) -> Any:
    """A layer as the functions ask for it: ``d`` dense, ``m`` with experts, ``-`` empty."""
    if letter == "-":
        return Noop()
    mlp = SimpleNamespace(experts=None, token_dispatcher=MagicMock()) if letter == "m" else SimpleNamespace()
    return SimpleNamespace(mlp=mlp, layer_number=number)


def overlapping(checkout: Path, called: Callable[[str, Any], None]) -> tuple[Any, Any]:
    """fb_overlap's modules of layers and blocks, whose implementations of layers report their names and arguments."""
    args = Settings()
    utils = alone(checkout, f"{OVERLAP}/modules/utils.py", torch=torch_alone(), get_full_args=lambda: args)

    def implementation(name: str) -> Any:
        def run(*words: Any, **rest: Any) -> Any:
            called(name, (words, rest))
            if "overlaping" in name:
                return "hidden", None, "graph", ("gradient", None), utils.P2PCommOutput()
            return ("hidden", None, "graph") if "forward" in name else "gradient"

        return run

    directions = [f"{way}_{kind}" for way in ("forward", "backward") for kind in ("moe", "dense", "noop")]
    both = [f"forward_{a}_backward_{b}_overlaping" for a in ("moe", "dense") for b in ("moe", "dense")]
    names = [f"transformer_layer_{each}" for each in (*directions, *both)]
    layers = alone(
        checkout, f"{OVERLAP}/transformer_layer.py", torch=torch_alone(), get_args=lambda: args,
        NoopTransformerLayer=Noop, NoopLayerGraph=utils.NoopLayerGraph, LayerGraph=utils.LayerGraph,
        P2PCommOutput=utils.P2PCommOutput, P2PCommParams=utils.P2PCommParams,
        is_p2p_comm_needed=utils.is_p2p_comm_needed, **{name: implementation(name) for name in names},
    )  # fmt: skip
    blocks = alone(
        checkout, f"{OVERLAP}/transformer_block.py", torch=torch_alone(), get_args=lambda: Settings(),
        NoopTransformerLayer=Noop, P2PCommOutput=utils.P2PCommOutput, P2PCommParams=utils.P2PCommParams,
        is_p2p_comm_needed=utils.is_p2p_comm_needed, transformer_layer_backward=layers.transformer_layer_backward,
        transformer_layer_forward_backward_overlaping=layers.transformer_layer_forward_backward_overlaping,
        make_viewless_tensor=lambda inp, **words: inp, detach_tensor=lambda tensor, **words: tensor,
    )  # fmt: skip
    blocks.utils = utils
    return layers, blocks


def ran(checkout: Path, forward: str, backward: str) -> list[tuple[str, int | None, int | None]]:
    """Implementations that a combined pass calls, with the position of the forward's and of the backward's layer."""
    found: list[tuple[str, int | None, int | None]] = []
    positions: dict[int, int] = {}

    def called(name: str, given: Any) -> None:
        words, rest = given
        at = [positions.get(id(each)) for each in (*words, *rest.values()) if id(each) in positions]
        own = at[0] if "forward" in name else None
        other = at[own is not None] if "backward" in name else None
        found.append((name.removeprefix("transformer_layer_"), own, other))

    layers, blocks = overlapping(checkout, called)
    row = [layer_of(letter) for letter in forward]
    graphs = []
    for at, letter in enumerate(backward):
        layer = layer_of(letter)
        graph = (
            blocks.utils.NoopLayerGraph(None, None, layer)
            if letter == "-"
            else blocks.utils.LayerGraph([None] * 12, [], layer)
        )
        positions[id(graph)] = at
        graphs.append(graph)
    positions.update({id(layer): at for at, layer in enumerate(row)})

    def bound(layer: Any) -> Any:
        def run(*words: Any, **rest: Any) -> Any:
            return layers.transformer_layer_forward_backward_overlaping(layer, *words, **rest)

        return run

    kept = [*row, *graphs]  # ids stay theirs
    steps = [bound(layer) for layer in row]
    block = SimpleNamespace(
        layers=steps, pre_process=True, post_process=False, training=True, config=Settings(), input_tensor=None,
        set_fwd_layer_graphs=lambda graphs: None, set_pp_comm_output=lambda output: None,
    )  # fmt: skip
    blocks.transformer_block_forward_backward_overlaping(
        block, "hidden", None, bwd_block_output_grad="gradient", bwd_block_graphs=graphs
    )
    assert kept
    return found


def pairs(checkout: Path, positions: int, own: int, other: int) -> str:
    """A letter for each position of a forward's chunk whose last positions are empty, as those of the backward's are.

    ``p``: it runs in one function with the backward's position n - 1 - l, or `AssertionError`; ``a``: alone.
    """
    calls = ran(checkout, "m" * own + "-" * (positions - own), "m" * other + "-" * (positions - other))
    found = {}
    for name, at, beside in calls:
        if at is not None:
            paired = "overlaping" in name
            assert not paired or beside == positions - 1 - at
            found[at] = "p" if paired else "a"
    return "".join(found[at] for at in range(positions))


# Recompute in the bubble -----------------------------------------------------------------------------------------


def bubble(checkout: Path, stages: int, chunks: int, micro_batches: int, rank: int) -> list[tuple[str, int, int]]:
    """Events of a stage under ``--recompute-in-bubble``: (kind, chunk, micro-batch).

    ``f`` a forward that keeps everything, ``i`` one that keeps its layers' inputs alone, ``r`` such a micro-batch run
    again, ``b`` a backward.
    """
    manager = alone(checkout, _CHECKPOINTS, torch=torch_alone()).get_pipeline_checkpoint_manager(chunks)
    args = SimpleNamespace(recompute_in_bubble=True, recompute_in_advance=False)
    config = Settings(hidden_size=8, overlap_p2p_comm=True)
    state = ranks(stages, rank, chunks)
    events: list[tuple[str, int, int]] = []
    begun = [0] * chunks

    def forward_step(*words: Any, **rest: Any) -> Any:
        chunk = state.get_virtual_pipeline_model_parallel_rank()
        task = chunk, begun[chunk]
        begun[chunk] += 1
        events.append(("f" if not manager.chunk_do_recompute else "i", *task))
        if manager.chunk_do_recompute:
            manager.add_recompute(lambda: events.append(("r", *task)))
        return task, 0

    def backward_step(given: Any, output: Any, *rest: Any) -> str:
        events.append(("b", *output))
        return "gradient"

    transfers = SimpleNamespace(
        recv_forward=lambda *words, **rest: "input",
        send_forward_recv_forward=lambda *words, **rest: ("input", None),
        send_backward_recv_backward=lambda *words, **rest: ("gradient", None),
    )
    module = alone(
        checkout, _RIPIPE, torch=torch_alone(), get_args=lambda: args, parallel_state=state,
        p2p_communication=transfers, forward_step=forward_step, backward_step=backward_step,
        get_model_config=lambda model: config, get_pipeline_checkpoint_manager=lambda num_of_chunks: manager,
    )  # fmt: skip
    module.forward_backward_ripipe_pipelining(
        forward_step_func=None, data_iterator=[None] * chunks, model=[MagicMock() for _ in range(chunks)],
        num_microbatches=micro_batches, seq_length=8, micro_batch_size=1,
    )  # fmt: skip
    return events


def most_alive(events: list[tuple[str, int, int]], chunks: int) -> list[list[int]]:
    """Micro-batches alive at the worst moments of a stage: whole ones of every chunk, then those of inputs alone.

    No other moment needs more memory, whatever a chunk keeps and whichever fraction of it its inputs are.
    """
    kept: dict[tuple[int, int], str] = {}
    moments = set()
    for kind, chunk, micro_batch in events:
        if kind == "b":
            assert kept.pop((chunk, micro_batch)) != "i", "a backward without what it needs"
        else:
            assert kind != "r" or kept[chunk, micro_batch] == "i"
            kept[chunk, micro_batch] = kind
        counts = Counter((at, one == "i") for (at, _), one in kept.items())
        moments.add(tuple(counts[at, inputs] for inputs in (False, True) for at in range(chunks)))
    assert not kept

    def needed(moment: tuple[int, ...]) -> list[int]:
        """Whole ones and all of each chunk: more of both is more memory."""
        return [*moment[:chunks], *(a + b for a, b in zip(moment[:chunks], moment[chunks:], strict=True))]

    def beaten(one: tuple[int, ...]) -> bool:
        return any(
            other != one and all(a >= b for a, b in zip(needed(other), needed(one), strict=True)) for other in moments
        )

    return [list(one) for one in sorted(moments) if not beaten(one)]


# The record ------------------------------------------------------------------------------------------------------


def _row(moments: list[list[int]]) -> str:
    return "; ".join(" ".join(map(str, moment)) for moment in moments)


def record(checkout: Path) -> dict[str, Any]:
    """The record, as plain data."""
    shapes = [(S, m) for S in (2, 3, 4, 5, 6) for m in (2 * S - 1, 2 * S + 1)]
    rounds = [(S, V, S * count) for S, V in ((2, 2), (3, 3), (4, 2), (5, 3)) for count in (1, 2, 3, 5)] + [(8, 2, 32)]
    sizes = [(n, x, y) for n in range(1, 5) for x in range(n + 1) for y in range(n + 1)]
    layers, blocks = overlapping(checkout, lambda name, given: None)
    dual = alone(checkout, _DUALPIPEV, torch=torch_alone())
    ripipe = alone(checkout, _RIPIPE, torch=torch_alone())
    return {
        "sources": {
            "dualpipev": source_of(dual.forward_backward_pipelining_with_cutinhalf),
            "pairs": source_of(blocks.transformer_block_forward_backward_overlaping),
            "kinds": source_of(layers.transformer_layer_forward_backward_overlaping),
            "exchanges": f"{OVERLAP}/overlap_funcs",
            "bubble": source_of(ripipe.forward_backward_ripipe_pipelining),
        },
        **{
            name: {f"{S} {m}": [dualpipev(checkout, S, m, rank, detach) for rank in range(S)] for S, m in shapes}
            for name, detach in (("dualpipev", False), ("dw_detach", True))
        },
        "pairs": {f"{n} {x} {y}": pairs(checkout, n, x, y) for n, x, y in sizes},
        "kinds": {
            f"{a}{b}": " ".join(name for name, *_ in ran(checkout, a, b)) for a, b in itertools.product("md-", "md-")
        },
        "exchanges": {
            a + b: exchanges(checkout, a, b) for a, b in ("mm", "ss", "md", "dm", "dd", "m ", "s ", " m", " s")
        },
        "bubble": {
            f"{S} {V} {m}": [_row(most_alive(bubble(checkout, S, V, m, rank), V)) for rank in range(S)]
            for S, V, m in rounds
        },
    }


def main() -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mindspeed", type=Path, required=True)
    found = record(parser.parse_args().mindspeed)
    text = f"# Passes of MindSpeed {COMMIT}, run (python -m benchmarks.mindspeed.own_passes).\n"
    RECORD.write_text(text + yaml.safe_dump(found, width=118, sort_keys=False, default_flow_style=None), "utf-8")


if __name__ == "__main__":
    main()
