"""A cluster and a model whose times and memory follow stated laws, and the files that Galvatron's profilers make."""

from __future__ import annotations

import json
from pathlib import Path

LAYER_MS = (2e-8, 1.5e-3)
"""Forward of a layer: ms a token squared, and a token."""
REST_MS = 2e-3
"""Forward of embedding, head and loss: ms a token."""
PARAMETER_MIB = 200.0
ACTIVATION_MIB_A_TOKEN = 0.1
RECOMPUTED_MIB_A_TOKEN = 0.01
VOCABULARY_MIB = 500.0
"""Parameters of embedding and head, alike."""
WORLD = 8


def layer_ms(tokens: int) -> float:
    return LAYER_MS[0] * tokens**2 + LAYER_MS[1] * tokens


def computation(lengths=(2048, 4096, 8192), batches=(1,), bracket=True) -> dict[str, float]:
    """Raw runs of 2 and 4 layers."""
    form = "layernum[{}]_bsz{}_seq{}" if bracket else "layernum{}_bsz{}_seq{}"
    return {
        form.format(layers, batch, tokens): batch * (layers * layer_ms(tokens) + REST_MS * tokens)
        for layers in (2, 4)
        for batch in batches
        for tokens in lengths
    }


def memory(lengths=(4096,), batch=8, paddle=False) -> dict[str, dict[str, float]]:
    """Raw runs under ZeRO-3 with activations split over TP: 1 and 2 layers without a pipeline, one a stage with it."""
    groups: dict[str, dict[str, float]] = {}
    bytes_each = 9.0 if paddle else 4.0
    for pp in (1, 2, 4):
        for tp in (1, 2, 4, 8):
            for recompute in (False, True):
                for split in (False, True):
                    plain = tp == 1 and split and not paddle
                    odd = (recompute and (pp > 1 or tp > 1 or (split and not paddle))) or pp * tp > WORLD or plain
                    if odd or (paddle and not split):
                        continue
                    dp = WORLD // pp // tp
                    name = f"{pp}_{tp}_{dp}" + "_c" * (recompute and not paddle)
                    name += f"_{recompute}" if paddle else "_vtp" * split + "_sp"
                    groups[name] = {}
                    for tokens in lengths:
                        for layers in (1, 2) if pp == 1 else (pp,):
                            for last in (False, True):
                                ends = (2 if pp == 1 else 1) * VOCABULARY_MIB
                                held = layers / pp
                                states = bytes_each * (held * PARAMETER_MIB / tp / dp + ends * pp / WORLD)
                                each = RECOMPUTED_MIB_A_TOKEN if recompute else ACTIVATION_MIB_A_TOKEN
                                alive = held * each * tokens / tp * batch / dp
                                peak = alive + 0.05 * tokens * batch * pp / WORLD
                                rank = ("last" if last else "first") if paddle else f"rank{WORLD - 1 if last else 0}"
                                key = f"layernum[{layers}]_bsz{batch}_seq{tokens}_{rank}"
                                groups[name] |= {f"{key}_ms": states, f"{key}_act": alive, f"{key}_act_peak": peak}
    return groups


def hardware(consecutive=True) -> dict[str, dict[str, float]]:
    """Files of one node with 8 cards, by name."""
    machine = "1nodes_8gpus_per_node"
    bandwidth = {"allreduce_size_8_consec_1": 150.0}
    for ranks in (4, 2):
        bandwidth |= {f"allreduce_size_{ranks}_consec_1": 160.0, f"allreduce_size_{ranks}_consec_0": 155.0}
    if not consecutive:
        bandwidth = {key[:-9]: value for key, value in bandwidth.items() if key.endswith("consec_1")}
    times = {}
    for ranks in (8, 4, 2):
        for power in range(11):
            size = 2**power
            times[f"allreduce_size_{ranks}_{size}MB_time"] = 0.05 + size * 2 * (ranks - 1) / ranks / 150
            times[f"all2all_size_{ranks}_{size}MB_time"] = 0.05 + size * (ranks - 1) / ranks / 150
    return {
        f"allreduce_bandwidth_{machine}.json": bandwidth,
        f"p2p_bandwidth_{machine}.json": {"pp_size_2": 150.0, "pp_size_4": 140.0, "pp_size_8": 110.0},
        f"sp_time_{machine}.json": times,
        "overlap_coefficient.json": {"overlap_coe": 1.2},
    }


def write_folder(folder: Path, *, paddle: bool = False, **lengths: tuple[int, ...]) -> Path:
    """Everything that a search with Galvatron needs, in one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, object] = dict(hardware(consecutive=not paddle))
    files["computation_profiling_bf16_toy_" + ("rank[0]" if paddle else "all") + ".json"] = computation(
        lengths.get("timed", (2048, 4096, 8192))
    )
    files["memory_profiling_bf16_toy" + ("" if paddle else "_all") + ".json"] = memory(
        lengths.get("measured", (4096,)), paddle=paddle
    )
    for name, data in files.items():
        (folder / name).write_text(json.dumps(data, indent=4))
    return folder


STRATEGY = {
    "pp_deg": 2,
    "tp_sizes_enc": "2,2,1,1,4,4",
    "tp_consecutive_flags": "1,1,1,1,1,1",
    "dp_types_enc": "1,1,0,0,0,1",
    "use_sp": "0,0,0,0,1,1",
    "checkpoint": "1,1,0,0,0,0",
    "world_size": 8,
    "global_bsz": 32,
    "chunks": 4,
    "pp_division": "2,4",
    "pipeline_type": "pipedream_flush",
    "default_dp_type": "zero2",
    "vtp": 2,
    "vsp": 0,
    "embed_sdp": 1,
    "vocab_sdp": 1,
}
"""A strategy file of Hetu for 6 layers on 2 stages of 4 ranks."""
