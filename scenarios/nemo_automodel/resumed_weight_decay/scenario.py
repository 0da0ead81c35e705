"""NeMo Automodel's first step after a resume has the weight decay of another schedule.

This affected users of NeMo Automodel who resume a training with a changed configuration, for
example to train longer. By default the scheduler goes on with the schedule of the checkpoint. The
learning rate does, and so does the weight decay, but for the first step: it is taken with the
weight decay that the new configuration has for this step. A run that is stopped and resumed often,
as on a cluster with short time limits, has such a step after each resume. A log of the scheduler
shows the right numbers, as it is written after the next step of the scheduler.

Root cause: ``load_state_dict`` restores what the learning rate needs, and calls ``step``, which
writes both numbers into the optimizer. Only then it restores what the weight decay needs. The
training loop calls the optimizer before it calls the scheduler again. Since 0.7.0 ``step`` comes
last.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import resumed_decay

oracle = resumed_decay.oracle


def run(ctx: api.Context) -> None:
    """Train with upstream's scheduler in both launches."""
    from nemo_automodel.components.optim.scheduler import OptimizerParamScheduler

    resumed_decay.train(ctx, OptimizerParamScheduler)
