"""Parts of MTP modules in a chunk without the head: their projections and a copy of the embedding."""

from __future__ import annotations

from dataclasses import dataclass

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import micro_batch_tokens
from taylor.cost_model.memory.statics import MIB, beside_mtp_bytes, mtp_embedding_bytes
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import layer_time
from taylor.cost_model.time.work import head_work, mtp_projection_weights
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec


@dataclass(frozen=True)
class MtpEntry:
    """Figures that move with the modules; head and last stage include them where they lie with the head.

    Their heads and losses stay: Megatron-LM runs them where the model's head is (d98e8a64
    megatron/core/models/gpt/gpt_model.py ``_postprocess``), to which the modules' states go on beside the layers'. The
    activations of their embeddings and norms are counted with the head's loss either way.

    Parameters
    ----------
    projection_forward : float
        Forward time of all modules' projections, in body-layer forward times.
    states_mib : float
        MiB of states of their projections and norms, and of their copy of the embedding.
    embedding_mib: float
        The part of it that is the copy of the embedding, which every stage with modules holds once.
    """

    projection_forward: float
    states_mib: float
    embedding_mib: float

    @classmethod
    def of(cls, model: ModelSpec, strategy: Strategy, rules: TrainingRules, device: DeviceSpec) -> MtpEntry:
        """Entry from the analytical model of the head's time and the last stage's memory."""
        speed, work = Speed.of(device, rules), head_work(model, strategy, rules)
        weights = mtp_projection_weights(model, strategy)
        flops = 2 * micro_batch_tokens(strategy, rules) * weights
        whole = speed.product(work.flops, work.read_bytes, work.written_bytes)
        rest = speed.product(work.flops - flops, work.read_bytes - rules.compute_bytes * weights, work.written_bytes)
        unit = layer_time(model, model.body_kind, strategy, rules, device).forward
        copy = mtp_embedding_bytes(model, strategy, rules)
        states = beside_mtp_bytes(model, strategy, rules)
        return cls(float((whole - rest) / unit), float(states.total) / MIB, float(copy.total) / MIB)
