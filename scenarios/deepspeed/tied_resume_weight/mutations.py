"""What else could be wrong with copies that drift, and with a load that overwrites one."""

from __future__ import annotations

from dataclasses import replace

from scenarios.deepspeed.tied_grad_reduce.mutations import left_out, summed_twice
from scenarios.deepspeed.tied_resume_norm.mutations import no_layer, no_masters, no_moments

MUTATIONS = (
    no_masters,
    no_moments,
    summed_twice,
    replace(no_layer, variant="buggy"),
    replace(no_moments, variant="buggy"),
    replace(left_out, variant="clipping"),
)
