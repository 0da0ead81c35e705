"""The process that imports torch and transformers once, and forks one process for each model.

``python -m harness.rank.models.worker`` reads what to ask from stdin, as JSON, and writes a line of
JSON for each answer. What upstream prints goes to stderr.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from harness.rank import shims, supervisor
from harness.rank.models.answer import Answer
from harness.rank.models.pool import ask_all, tasks
from harness.rank.models.relations import QUESTIONS

IMPORTED = (
    "transformers",
    "transformers.modeling_utils",
    "transformers.cache_utils",
    "transformers.integrations",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "peft",
    "deepspeed",
)
"""What the processes share, as far as it is installed."""


def main() -> None:
    asked = json.loads(sys.stdin.read())
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    gc.disable()  # imports take a quarter less time so
    _import(asked["shims"])
    gc.freeze()
    gc.enable()
    # An overlay has no bytecode of most models, and is sealed.
    sys.pycache_prefix = asked["bytecode"]
    todo = [task for model, names in asked["ask"].items() for task in tasks(model, names)]
    ask_all(todo, asked["jobs"], asked["limit"], lambda *found: _say(output, *found))


def _import(points: Sequence[str]) -> None:
    """Import what the processes share. ``points`` are the shims that the releases need."""
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)
    shims.import_upstream(points, ())
    for name in (*IMPORTED, *{question.module for question in QUESTIONS.values()}):
        with suppress(ImportError):
            importlib.import_module(name)
    shims.freeze()


def _say(output: Any, model: str, relation: str, answer: Answer) -> None:
    said = {
        "model": model,
        "relation": relation,
        **answer.to_json(),
        "repeatable": answer.repeatable,
    }
    print(json.dumps(said), file=output)


if __name__ == "__main__":
    supervisor.end_with_parent()
    os.environ[supervisor.PARENT] = str(os.getpid())  # for the processes of the models
    main()
