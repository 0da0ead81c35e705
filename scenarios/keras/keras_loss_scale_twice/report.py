"""Wrap keras' SGD with a loss_scale_factor in a LossScaleOptimizer: how long is a step?

Needs torch and keras, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch

print("keras", keras.__version__)
for factor in (None, 100.0):
    with keras.device("cpu"):
        inner = keras.optimizers.SGD(0.5, loss_scale_factor=factor)
        optimizer = keras.optimizers.LossScaleOptimizer(inner)
        weight = keras.Variable(keras.ops.ones(1))
        leaf = torch.ones(1, requires_grad=True)
        optimizer.build([weight])
        optimizer.scale_loss(leaf.sum()).backward()  # the gradient of the loss itself is 1
        optimizer.apply([leaf.grad], [weight])
        end = float(weight.numpy()[0])
    print(f"loss_scale_factor={factor}: a step with a rate of 0.5 moves 1 to {end:.4g}")
has_bug = abs(end - 0.5) > 1e-4
print("WRONG: the gradient was divided twice" if has_bug else "right: it moves to 0.5")
raise SystemExit(3 if has_bug else 0)
