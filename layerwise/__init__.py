"""A strategy of its own for every layer, with division and micro-batches: the job, the choices, the plan, its proof."""
