"""Memory that torch's allocator reserves beside the tensors of a job whose tensors all lie on one stream.

That is Megatron's way: GEMMs, norms, pipeline transfers and exchanges ask for memory on the computation's stream, and
gradients lie in one buffer for the whole run. `cost_model.memory.reserved` has the jobs whose collectives have pools of
their own. Four parts are counted.

- *What building the model left.* With a distributed optimizer the 16-bit weights are copied into one buffer, beside
  the gradients' buffer (Megatron-LM d98e8a64 megatron/core/distributed/param_and_grad_buffer.py:1183-1195, 1305-1310).
  The ones that the model was built with are free memory then, which master weights and activations take; until a
  checkpoint is loaded (megatron/training/checkpointing.py:3171, ``empty_cache``) nothing goes back to the card. So a
  job reserves at least both buffers and the weights once more.
- *Last pages* of the pools of large and of small tensors.
- *Segments of the logits*. Without expandable segments the logits in 16 bits and their copy in fp32 have segments of
  their own size. The layers' tensors use them between two losses, but no loss uses what those free, and no two of them
  merge. Of the loss's six bytes a logit two are counted once more.
- *Holes* between tensors of unlike size, `HOLES_SHARE`.

The last two were found by the allocator's own rules (`dryrun.torch_stage.caching_allocator`) on the requests of random
stages, three steps each; no measured run has a part in them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from taylor.cost_model.job.strategy_table import Quantity
from taylor.cost_model.memory.reserved import PAGE_BYTES

MIB = 2**20

HOLES_SHARE: Mapping[bool, float] = {False: 0.014, True: 0.009}
"""Holes over the tensors of the peak, without ``expandable_segments`` and with them.

Medians of stages without a head by ``python -m benchmarks.stage_agreement --frameworks megatron`` with the seeds 1 and
2. Of 45 stages so drawn, with heads, the formula has a median error of 1.8 % without expandable segments (-10 to +13 %)
and of 0.8 % with them (-8 to +2 %)."""

LOGITS_SHARE = 1 / 3
"""Segments of logits in 16 bits over the memory of a loss with its copy in fp32."""


def one_pool_bytes(
    peak: Quantity, logits: Quantity, weights: Quantity, gradients: Quantity, *, expandable: bool, joined: bool
) -> Quantity:
    """Bytes that are reserved for tensors on one stream.

    Parameters
    ----------
    peak : scalar or array [n]
        Bytes of all tensors at the worst moment.
    logits : scalar or array [n]
        The part of them that is logits and loss.
    weights, gradients : scalar or array [n]
        Bytes of the stored weights and of the accumulated gradients.
    expandable : bool
        ``expandable_segments:True`` in the environment.
    joined : bool
        Weights lie in one buffer, into which those were copied that the model was built with.
    """
    apart = 0.0 if expandable else LOGITS_SHARE * logits
    reserved = peak * (1 + HOLES_SHARE[expandable]) + apart + PAGE_BYTES
    built = 2 * weights + gradients if joined else weights + gradients
    return np.maximum(reserved, built)
