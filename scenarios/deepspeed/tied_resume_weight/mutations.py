"""What else could be wrong with copies that drift, and with a load that overwrites one."""

from __future__ import annotations

from dataclasses import replace

from scenarios.deepspeed._tied_mutations import (
    no_layer,
    no_masters,
    no_moments,
    one_left_out,
    summed_twice,
)

MUTATIONS = (
    no_masters,
    no_moments,
    summed_twice,
    replace(no_layer, variant="buggy"),
    replace(no_moments, variant="buggy"),
    replace(one_left_out, variant="clipping"),
)
