"""In fp16, once QK^T overflows, DeepSpeed skips every step, halves the loss scale, and gives up.

This affected the training of a GPT of 1.87 billion parameters with DeepSpeed 0.13.3 on 8 GPUs. For
443 steps (14 hours) everything looked healthy: the loss was flat at 4.4, the gradient norm between
1.3 and 2.1, the loss scale at 4096. At step 444 the loss was nan. DeepSpeed skipped that step and
halved the scale, again and again, as if that could help; at step 456 it gave up with ``Current loss
scale already at minimum - cannot decrease scale anymore. Exiting run.``

Root cause: the largest fp16 number is 65504. While the learning rate is still rising, the weights
grow, and so does QK^T, the product of queries and keys, which is computed in fp16 and scaled down
only afterwards. Once it does not fit, it is inf, and the softmax of inf is nan. The loss scaler
takes nan gradients for gradients that were scaled too high. It ignores hysteresis - 1 overflows,
and then lowers the scale log2(initial / minimum) times, which changes nothing in the forward pass.
The next overflow raises.

No release fixes this: it is how fp16 works. The fixed variant trains in bf16, which has 8 bits of
exponent where fp16 has 5. There the same product passes 65504 too, and nothing happens.

Here a small GPT with a high learning rate overflows after about a hundred steps. Nothing is
injected: the logits grow by training.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.deepspeed import _fp16 as fp16
from scenarios.deepspeed import _loss_scale as loss_scale
from scenarios.deepspeed import _scaler_records as scaler

check_params = fp16.check_params
oracle = loss_scale
plan, run = scaler.plan, fp16.run


def detect(records: api.Records) -> api.Finding | None:
    """The loss is not finite, and after the expected number of skipped steps the documented
    exception ends the training."""
    return fp16.raised(records)
