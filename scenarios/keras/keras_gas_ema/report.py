"""Average a weight with keras, over 4 accumulated micro-batches and over their mean: is it equal?

Needs torch and keras, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch

torch.manual_seed(0)
updates = 3 * torch.randn(3, 4, 3)
print("keras", keras.__version__)
averages = []
for steps in (4, None):
    with keras.device("cpu"):
        options = {"use_ema": True, "ema_momentum": 0.5, "gradient_accumulation_steps": steps}
        optimizer = keras.optimizers.SGD(0.1, **options)
        weight = keras.Variable(keras.ops.ones(3))
        for micro in updates:
            for gradient in micro if steps else micro.mean(0, keepdim=True):
                optimizer.apply([gradient], [weight])
        before = weight.numpy().copy()
        optimizer.finalize_variable_values([weight])  # the weight becomes the average
        averages.append(weight.numpy())
    source = "4 micro-batches" if steps else "their mean     "
    print(f"{source}, 3 updates: weight {before.round(4)}, average {averages[-1].round(4)}")
has_bug = bool(abs(averages[0] - averages[1]).max() > 1e-5)
print("WRONG: each micro-batch updates the average" if has_bug else "right: both are the same")
raise SystemExit(3 if has_bug else 0)
