"""What else could be wrong with copies that drift, and with a load that overwrites one."""

from __future__ import annotations

from dataclasses import replace

from scenarios.deepspeed._tied_mutations import (
    masters_not_loaded,
    moments_not_loaded,
    one_weight_left_out,
    second_layer_not_loaded,
    summed_twice,
)

MUTATIONS = (
    masters_not_loaded,
    moments_not_loaded,
    summed_twice,
    replace(second_layer_not_loaded, variant="buggy"),
    replace(moments_not_loaded, variant="buggy"),
    replace(one_weight_left_out, variant="clipping"),
)
