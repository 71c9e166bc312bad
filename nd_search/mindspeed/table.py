"""All start rules of MindSpeed and MindSpeed-LLM, in the order in which they apply to a job."""

from __future__ import annotations

from taylor.nd_search.mindspeed.experts import EXPERT_RULES
from taylor.nd_search.mindspeed.pipeline import PIPELINE_RULES
from taylor.nd_search.mindspeed.splits import SPLIT_RULES
from taylor.nd_search.mindspeed.states import STATE_RULES

START_RULES = (*PIPELINE_RULES, *EXPERT_RULES, *SPLIT_RULES, *STATE_RULES)
"""Omitted are checks that no launch script determines: of installed packages, and of files on the training machine."""
