"""Megatron's first step after a resume has the weight decay of another schedule.

This affects users of Megatron-LM who resume a training with a changed configuration, for example to
train longer, and let the checkpoint decide (``--use-checkpoint-opt_param-scheduler``). The learning
rate goes on with the schedule of the checkpoint, and so does the weight decay, but for the first
step: it is taken with the weight decay that the new arguments have for this step. A run that is
stopped and resumed often has such a step after each resume. Nothing shows it: after the next step
of the scheduler the numbers are right.

Root cause: ``load_state_dict`` restores what the learning rate needs, and calls ``step``, which
writes both numbers into the optimizer. Only then it restores what the weight decay needs. The
training loop calls the optimizer before it calls the scheduler again.

megatron-core 0.16.1, the newest release that runs here, is affected. The fixed variant is our
remedy: the numbers are written once more when all is restored. A pull request moves the call.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import resumed_decay


def written_again(function: Any) -> api.Edits:
    """When all is restored, write both numbers into the optimizer once more."""
    import libcst as cst

    last = function.body.body[-1]
    yield last, cst.FlattenSentinel([last, cst.parse_statement("self.step(increment=0)")])


oracle = resumed_decay.oracle


def run(ctx: api.Context) -> None:
    """Train with upstream's scheduler in both launches."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    resumed_decay.train(ctx, OptimizerParamScheduler)
