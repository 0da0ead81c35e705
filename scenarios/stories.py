"""The stories: bugs of one piece of code that followed from each other."""

from __future__ import annotations

from harness.bugs import api

STORIES = (
    api.Story(
        "trainer_loss",
        "By what does the Trainer divide its loss?",
        """A step of training should apply the gradient of the mean over all its labels, however the
rows are cut into micro-batches and spread over ranks. transformers' Trainer missed this in ten
ways between 2024 and 2026, and several fixes caused the next bug.

Until 4.45 it took the mean of the micro-batches' means (`trainer_token_mean`). The fix in 4.46
counts the labels before the step and lets the model divide by their number. It forgot models that
cannot take the number (`trainer_gas_never`), label smoothing (`label_smoothing_gas`) and the
auxiliary loss of experts (`moe_aux_world`), and it counted the first label of each row, which
nothing predicts (`trainer_counts_first_label`). An inverted condition broke the other models in
4.47.0, and once more in 4.48.0 with the fix for the first ones (`trainer_gas_llama`).

5.0 gave heads of BERT and many others a signature by which the Trainer takes them for models that
divide by the number of labels. They do not, so gradients (`heads_gas_ranks`) and evaluation losses
(`eval_loss_ranks`) are multiplied. 5.2.0 divided by the micro-batches twice (`trainer_gas_twice`),
which hid `label_smoothing_gas` and half of `heads_gas_ranks` until it was fixed in 5.5.4. The fix
for the first label does not reach GPT-2 (`gpt2_counts_first_label`).

One test shows all of them but the first label and the evaluation loss, if it is run with each kind
of model: a step of SGD on the same rows, with one and with several micro-batches and ranks, must
change the weights equally.""",
        (
            "trainer_token_mean",
            "trainer_gas_never",
            "trainer_counts_first_label",
            "label_smoothing_gas",
            "moe_aux_world",
            "trainer_gas_llama",
            "gpt2_counts_first_label",
            "heads_gas_ranks",
            "eval_loss_ranks",
            "trainer_gas_twice",
        ),
    ),
    api.Story(
        "deepspeed_pipeline",
        "By what does DeepSpeed's pipeline divide its gradients?",
        """With pipeline parallelism and gradient accumulation, a step should apply the mean of the
micro-batches' gradients, on every stage. DeepSpeed gave three results.

Up to 0.15.4 it was right. In 0.16.0 to 0.18.2 no stage divides: with 4 micro-batches the gradient
is 4 times too large (`pipeline_gas_never`). In 0.18.3 to 0.19.2 all stages but the last divide
twice, so the first stages train with a quarter of the gradient (`pipeline_gas_twice`). 0.19.3
divides once everywhere.

The loss is the same in all of them. One step of SGD on the same rows, with one and with four
micro-batches, shows both bugs.""",
        ("pipeline_gas_never", "pipeline_gas_twice"),
    ),
)
