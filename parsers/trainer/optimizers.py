"""Optimizers of the Trainer by the bytes of their states.

Source of the names: huggingface/transformers v4.57.1 src/transformers/training_args.py, ``OptimizerNames``. In 8 bits:
bitsandbytes' blockwise moments, one fp32 maximum for 256 values (bitsandbytes functional.py, ``quantize_blockwise``),
which is under a fiftieth of them and not counted. torchao's moments in 4 bits are two half bytes, with an fp32 scale
for 128 of them (pytorch/ao torchao/optim/subclass_4bit.py, ``OptimState4bit``; transformers v4.57.1
src/transformers/trainer.py:1757).
Without ``fused`` torch's AdamW makes one further copy of all second moments in its step (torch 2.13
torch/optim/adam.py, ``_multi_tensor_adam``: ``exp_avg_sq_sqrt``); from torch 2.8 on transformers takes the fused one by
default (training_args.py, ``default_optim``).
Adam-mini keeps one second moment a block (zyushun/Adam-mini, arXiv:2406.16793); Muon a momentum of the layers' matrices
and AdamW's moments of everything else (KellerJordan/Muon).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Moments:
    """Moments of an optimizer.

    Parameters
    ----------
    count : int
        Values a parameter.
    bytes_each : int or None
        Bytes of a value; None: as the weight that the optimizer updates.
    others : int or None
        Values of a parameter outside the layers' matrices, where that differs.
    paged : bool
        They may move to the host where memory is short.
    copied : int
        Values a parameter that the step copies.
    """

    count: int
    bytes_each: int | None = None
    paged: bool = False
    others: int | None = None
    copied: int = 0

    def bytes(self, weight_bytes: int) -> int:
        """Bytes a parameter of a matrix beside a weight of this number of bytes."""
        return self.count * (weight_bytes if self.bytes_each is None else self.bytes_each)

    def other_bytes(self, weight_bytes: int) -> int | None:
        """Bytes a parameter of everything else; None: as of matrices."""
        return None if self.others is None else self.others * (self.bytes(weight_bytes) // max(1, self.count))


MOMENTS = {
    "adamw_torch": Moments(2, copied=1),
    **dict.fromkeys(("adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_anyprecision"), Moments(2)),
    **dict.fromkeys(("adamw_torch_npu_fused", "adamw_torch_xla", "adamw", "adam", "fusedadam", "cpuadam"), Moments(2)),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "adamw_torch_8bit"), Moments(2, 1)),
    **dict.fromkeys(("adamw_torch_4bit", "ao_adamw_4bit"), Moments(1, 1)),
    **dict.fromkeys(("ao_adamw_8bit", "ao_adamw_fp8"), Moments(2, 1)),
    **dict.fromkeys(("paged_adamw_8bit",), Moments(2, 1, paged=True)),
    **dict.fromkeys(("paged_adamw_32bit", "paged_adamw"), Moments(2, 4, paged=True)),
    **dict.fromkeys(("lion_32bit", "lion"), Moments(1, 4)),
    "lion_8bit": Moments(1, 1),
    "paged_lion_8bit": Moments(1, 1, paged=True),
    "paged_lion_32bit": Moments(1, 4, paged=True),
    "sgd": Moments(0),
    "adagrad": Moments(1),
    "rmsprop": Moments(1),
    "adam_mini": Moments(1),
    "muon": Moments(1, others=2),
}
"""By name; what is missing has states whose size is not known here."""
USUAL = "adamw_torch_fused"
"""transformers' default since torch 2.8."""
