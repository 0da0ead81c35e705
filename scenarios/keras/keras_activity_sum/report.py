"""Call a layer with an activity regularizer on 5 rows: is its term that of one row?

Needs torch and keras, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras

with keras.device("cpu"):
    layer = keras.layers.Dense(
        5,
        kernel_initializer="ones",
        kernel_regularizer=keras.regularizers.L1(0.01),
        activity_regularizer=keras.regularizers.L2(0.01),
    )
    layer(keras.ops.ones((5, 5)) * 2.0)
    total = float(sum(float(loss) for loss in layer.losses))
print(f"keras {keras.__version__}: the weights' and the activity's terms are {total:.4g} together")
print("documented: 0.25 for the weights, and 5 for the activity of the mean row")
print("WRONG: it is 5 times as large" if total > 6 else "right: 5.25")
raise SystemExit(3 if total > 6 else 0)
