"""Record which work of two layers MindSpeed runs between the launch of an exchange and the wait for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from benchmarks.mindspeed.stand_ins import alone, torch_alone

OVERLAP = "mindspeed/core/transformer/moe/moe_feature/fb_overlap"


def exchanges(checkout: Path, forward: str, backward: str) -> dict[str, list[str]]:
    """Every exchange of a pair of layers, and the work between its launch and the wait for it.

    A letter is that of `layer_of`, ``s`` for experts with shared ones beside them, or a space for no layer: the other
    one runs alone, on its own function.
    """
    log: list[str] = []
    found: dict[str, list[str]] = {}

    def handle(name: str) -> Any:
        begun = len(log)

        def wait() -> None:
            found[name] = log[begun:]

        return SimpleNamespace(wait=wait)

    def work(name: str, result: Any = None) -> Any:
        def run(*words: Any, **rest: Any) -> Any:
            log.append(name)
            return MagicMock() if result is None else result

        return run

    def dispatcher(way: str) -> Any:
        def dispatch(*words: Any, **rest: Any) -> Any:
            return (MagicMock(), handle(f"{way} dispatch")), (
                MagicMock(),
                MagicMock(),
            )

        def combine(*words: Any, **rest: Any) -> Any:
            return MagicMock(), handle(f"{way} combine")

        return SimpleNamespace(
            async_dispatch_comm=dispatch, backward_async_dispatch_comm=dispatch, async_combine_comm=combine,
            backward_async_combine_comm=combine, token_permute1=lambda *words: (MagicMock(),) * 3,
            token_permute2=lambda *words: (MagicMock(),) * 2, token_unpermute1=lambda *words: MagicMock(),
            token_unpermute2=lambda *words: (MagicMock(), None), num_local_experts=1, overlap_stream=MagicMock(),
            input_splits=None, output_splits=None,
        )  # fmt: skip

    def layer(letter: str, way: str) -> Any:
        mlp: Any = work(f"{way} MLP", (MagicMock(), None))
        if letter in "ms":
            shared = MagicMock(get_output=lambda: (MagicMock(), None))
            shared.linear_fc1_forward_and_act = shared.linear_fc2_act_fc1_backward = work(f"{way} shared experts")
            mlp = SimpleNamespace(
                shared_experts=shared if letter == "s" else None,
                router=lambda *words: (MagicMock(), MagicMock()), token_dispatcher=dispatcher(way),
                experts=MagicMock(side_effect=work(f"{way} experts", ((MagicMock(), None, None, None), None))),
            )  # fmt: skip
        attention = SimpleNamespace(a2a_hooked_on_attention=False)
        return MagicMock(mlp=mlp, self_attention=attention, layer_number=2, training=True)

    graphs = {"attn_graph": "attention", "grouped_mlp_graph": "experts"}

    def graph_of(letter: str) -> Any:
        graph = MagicMock(
            layer=layer(letter, "backward"), recompute_needed_tensors=[None] * 4, is_moe_layer=letter in "ms",
            attn_swap_managers=None, unperm2_swap_manager=None, fc1_swap_manager=None, probs_swap_manager=None,
            act_ckpt_manager=None,
        )  # fmt: skip
        for name, label in graphs.items():
            getattr(graph, name).label = f"backward {label}"
        graph.unperm2_graph.label = "" if letter in "ms" else "backward MLP"
        return graph

    def run_graph_backward(graph: Any, *words: Any, **rest: Any) -> None:
        if isinstance(graph.label, str) and graph.label:
            log.append(graph.label)

    args = SimpleNamespace(moe_zero_memory="disable", moe_unperm2_mem_optim_swap=False)
    store = SimpleNamespace(
        pop=work("weight gradients"), start_decouple=lambda: None, end_decouple=lambda: None, is_decoupleBlock=False
    )
    state = SimpleNamespace(
        get_tensor_model_parallel_world_size=lambda: 1, get_expert_model_parallel_group=lambda: None
    )
    name = "fwdbwd" if forward.strip() and backward.strip() else "fwd" if forward.strip() else "bwd"
    module = alone(
        checkout, f"{OVERLAP}/overlap_funcs/{name}.py", torch=torch_alone(), get_full_args=lambda: args,
        parallel_state=state, WeightGradStore=store, run_graph_backward=run_graph_backward,
        attention_forward=work("forward attention"), is_p2p_comm_needed=lambda params: False,
        PREMUTE_FINISH_EVENT=None,
    )  # fmt: skip
    kinds = {"m": "moe", "s": "moe", "d": "dense"}
    if name == "fwdbwd":
        function = f"transformer_layer_forward_{kinds[forward]}_backward_{kinds[backward]}_overlaping"
        getattr(module, function)(layer(forward, "forward"), MagicMock(), None, MagicMock(), graph_of(backward))
    elif name == "fwd":
        getattr(module, f"transformer_layer_forward_{kinds[forward]}")(layer(forward, "forward"), MagicMock())
    else:
        getattr(module, f"transformer_layer_backward_{kinds[backward]}")(MagicMock(), graph_of(backward))
    return found
