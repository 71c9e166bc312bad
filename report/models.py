"""Models for the terminal and for programs: a table of all, a page of one with its layers and parameters by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from taylor.cost_model.job.parameters import (
    active_parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    norm_parameters,
    total_parameters,
)
from taylor.register.layers import FULL_REACH, AttentionSpec, LayerSpec, LinearAttentionSpec, MambaSpec
from taylor.register.model import MTP, ModelSpec


@dataclass(frozen=True)
class Part:
    """Part of a model: its number, and the parameters of each.

    Parameters
    ----------
    name : str
    count : int
    parameters : int
        Of one of them.
    note : str
        Meaning for a reader.
    counted : bool
        Whether it belongs to the model's total.
    """

    name: str
    count: int
    parameters: int
    note: str = ""
    counted: bool = True


def models_table(models: Sequence[ModelSpec]) -> Table:
    """One row a model: parameters, active ones of a token, layers, width and the kinds of its layers."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    table.caption = "parameters without MTP modules; active: those that one token passes through"
    table.add_column("model", no_wrap=True)
    for heading in ("parameters", "active", "layers", "hidden"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("kinds", overflow="fold")
    for model in models:
        total, active = total_parameters(model), active_parameters(model)
        table.add_row(
            Text(model.name),
            short_count(total),
            short_count(active) if active != total else "",
            str(model.n_layers),
            f"{model.hidden:,}",
            Text(", ".join(f"{count} {kind}" for kind, count in model.body_counts.items())),
        )
    return table


def model_page(model: ModelSpec) -> Table:
    """One model: its parts with their parameters, its layers in order, the source of its sizes."""
    table = Table(title=Text(model.name), title_justify="left", header_style="bold", pad_edge=False, box=None)
    table.add_column("part", no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("parameters each", justify="right", no_wrap=True)
    table.add_column("together", justify="right", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for part in model_parts(model):
        together = f"{part.count * part.parameters:,}" if part.counted else f"({part.count * part.parameters:,})"
        table.add_row(Text(part.name), str(part.count), f"{part.parameters:,}", together, Text(part.note))
    table.add_section()
    table.add_row("all", "", "", f"{total_parameters(model):,}", _published(model))
    table.add_row("a token passes", "", "", f"{active_parameters(model):,}", "")
    lines = [f"layers in order: {model.pattern}"] if model.pattern else []
    lines += [f"source: {model.source}"] if model.source else []
    table.caption = Text("\n".join(lines))
    table.caption_justify = "left"
    return table


def model_parts(model: ModelSpec) -> Iterator[Part]:
    """Parts of a model in order; the counted ones sum up to its total."""
    yield Part("embedding", 1, embedding_parameters(model), f"{model.vocab:,} words x {model.hidden:,}")
    if model.extra_parameters:
        yield Part("beside the layers", 1, model.extra_parameters, "a vision encoder, norms of the embedding and such")
    for kind, count in model.body_counts.items():
        yield Part(kind, count, layer_parameters(model, kind), "; then ".join(map(layer_text, model.layers_of(kind))))
    yield Part("last norm", 1, norm_parameters(model))
    note = "the embedding's own" if model.tied_embedding else ""
    yield Part("head", 1, 0 if model.tied_embedding else head_parameters(model), note)
    if model.mtp_layers:
        module = " + ".join(layer.name for layer in model.mtp_module())
        yield Part(MTP, model.mtp_layers, layer_parameters(model, MTP), f"{module}; not in the total", counted=False)


def layer_text(layer: LayerSpec) -> str:
    """Contents of a layer, in words: its mixer, its MLP, its experts."""
    parts = [_mixer_text(layer.mixer)] if layer.mixer is not None else []
    if layer.mlp is not None:
        parts.append(f"{'gated ' if layer.mlp.gated else ''}MLP {layer.mlp.width:,}")
    moe = layer.moe
    if moe is not None:
        shared = f", shared {moe.shared_width:,}" if moe.shared_width else ""
        latent = f" on {moe.latent:,}" if moe.latent is not None else ""
        empty = f" and {moe.n_empty} empty" if moe.n_empty else ""
        parts.append(f"{moe.top_k} of {moe.n_experts}{empty} experts {moe.expert_hidden:,}{latent}{shared}")
    return "; ".join(parts)


def model_record(model: ModelSpec) -> dict[str, Any]:
    """All of a model as plain data for JSON, with its parameters in all and by part."""
    return {
        **asdict(model),
        "parameters": total_parameters(model),
        "active_parameters": active_parameters(model),
        "layers": model.kind_counts,
        "parts": [asdict(part) for part in model_parts(model)],
    }


def short_count(parameters: int) -> str:
    """Parameters in billions, or in trillions from one on once they are rounded."""
    return f"{parameters / 1e12:.2f} T" if parameters >= 0.99995e12 else f"{parameters / 1e9:.1f} B"


def _mixer_text(mixer: AttentionSpec | MambaSpec | LinearAttentionSpec) -> str:
    if isinstance(mixer, MambaSpec):
        version = "Mamba" if mixer.dt_rank is not None else f"Mamba-2, {mixer.n_heads} heads,"
        return f"{version} {mixer.inner:,} channels, state {mixer.state}"
    if isinstance(mixer, LinearAttentionSpec):
        return f"linear attention, {mixer.key_heads} and {mixer.value_heads} heads of {mixer.value_head_dim}"
    latent = mixer.latent
    if latent is not None:
        query = f", queries' {latent.q_lora_rank:,}" if latent.q_lora_rank is not None else ""
        text = f"{mixer.n_heads} heads of {mixer.qk_width}, latent {latent.kv_lora_rank}{query}"
    else:
        keys = f", {mixer.n_kv_heads} of keys" if mixer.n_kv_heads != mixer.n_heads else ""
        text = f"{mixer.n_heads} heads of {mixer.head_dim}{keys}"
    if mixer.reach != FULL_REACH and mixer.window is not None:
        text += f", {mixer.reach} {mixer.window:,}"
    if mixer.compression:
        text += f", a key for every {mixer.compression} before"
    return text + (f", {mixer.indexer.top_k:,} chosen" if mixer.indexer is not None else "")


def _published(model: ModelSpec) -> str:
    return f"published: {short_count(model.published_parameters)}" if model.published_parameters else ""
