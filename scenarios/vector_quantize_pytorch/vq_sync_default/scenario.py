"""VectorQuantize does not synchronise its codebook between ranks unless it is told to.

The codebook of VectorQuantize is a moving average of the vectors that are quantized; it is updated
in each forward pass. With ``sync_codebook=True`` the sums go over all ranks. Up to 1.7.0 the
default was False, also in a distributed run. Each rank then has a codebook of its own rows, and the
same code means another vector on another rank. Under DDP, which copies the buffers of rank 0 before
each forward pass, the codebook sees the rows of rank 0 alone. The loss of each rank falls as it
should, and the checkpoint has the codebook of rank 0.

Root cause: the default of ``sync_codebook`` in ``VectorQuantize.__init__``. Since 1.7.1 it is None,
and then the codebook is synchronised if there are several ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness import api
from scenarios.vector_quantize_pytorch import _codebooks as codebooks


@dataclass
class Params(api.Knobs):
    sync_codebook: bool = api.knob(False, about="is given as True; otherwise it is not given")
    rows: int = api.knob(32, least=8, about="that each rank quantizes in a step")
    steps: int = api.knob(5, least=1, about="of training")


SCENARIO = api.Scenario(
    report=(
        "automatically sync codebook, if distributed is initialized",
        "https://github.com/lucidrains/vector-quantize-pytorch/commit/315098f",
    ),
    fix="https://github.com/lucidrains/vector-quantize-pytorch/commit/315098f",
    symptom="the codebook is not synchronised, although there are several ranks",
    trigger="several ranks, and a VectorQuantize without sync_codebook=True",
    remedy="give VectorQuantize sync_codebook=True",
    pins={"vector-quantize-pytorch": "1.7.0"},
    releases="vector-quantize-pytorch>=0.4.10",  # which brought sync_codebook
    harm="ruins training",
    visibility="silent",
    settings={"ranks": api.above(1), "code": api.by_code("sync_codebook is not given")},
    files=("vector_quantize_pytorch/vector_quantize_pytorch.py",),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("1.7.1"),
        "control": api.control("1.7.0 with sync_codebook=True", params={"sync_codebook": True}),
        "one_rank": api.control("1.7.0 on one rank", ranks=1),
    },
)

plan = codebooks.plan
detect = codebooks.detect
picture = codebooks.picture


def run(ctx: api.Context) -> None:
    """Quantize other rows on each rank, with the default of sync_codebook."""
    from functools import partial

    import torch.distributed as dist
    from vector_quantize_pytorch import VectorQuantize

    dist.init_process_group(ctx.lane.backend)
    given = {"sync_codebook": True} if ctx.params.sync_codebook else {}
    sizes = {"dim": codebooks.DIM, "codebook_size": codebooks.CODES}
    codebooks.train(ctx, partial(VectorQuantize, **sizes, **given))


def exercised(records: api.Records) -> api.Exercise:
    """The ranks had other rows, and sync_codebook was not given."""
    given = records.params.sync_codebook
    return codebooks.unlike_rows(records) & api.Exercise.needs(not given, "sync_codebook was given")
