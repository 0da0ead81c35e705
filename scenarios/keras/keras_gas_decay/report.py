"""Update a weight with keras, by 4 accumulated micro-batches and by their mean: is it the same?

Needs torch and keras, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch

torch.manual_seed(0)
micro = 3 * torch.randn(4, 3)
print("keras", keras.__version__)
has_bug = False
for options in ({}, {"weight_decay": 0.1}, {"clipnorm": 1.0}):
    weights = []
    for steps, gradients in ((4, micro), (None, micro.mean(0, keepdim=True))):
        with keras.device("cpu"):
            optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps, **options)
            weight = keras.Variable(keras.ops.ones(3))
            for gradient in gradients:
                optimizer.apply([gradient], [weight])
            weights.append(weight.numpy())
    print(f"{options}: 4 micro-batches {weights[0].round(4)}, their mean {weights[1].round(4)}")
    has_bug |= bool(abs(weights[0] - weights[1]).max() > 1e-5)
print("WRONG: 4 micro-batches decay or clip otherwise" if has_bug else "right: both are the same")
raise SystemExit(3 if has_bug else 0)
