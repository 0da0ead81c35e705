"""The process that imports torch and transformers once, and forks one process for each model.

``python -m harness.rank.models.worker`` reads its tasks from stdin, as JSON, and writes a line of
JSON for each answer. What upstream prints goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

from harness.rank import forks, shims, supervisor
from harness.rank.models.answer import Answer, Row
from harness.rank.models.pairs import DEVICE
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
"""Modules that the processes share, if they are installed."""


def main() -> None:
    request = json.loads(sys.stdin.read())
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.environ[DEVICE] = request["device"]
    with forks.importing():
        _import(request["shims"])
    # An overlay has no bytecode of most models, and is sealed.
    sys.pycache_prefix = request["bytecode"]
    todo = [task for model in request["models"] for task in tasks(model, request["relations"])]

    def report(model: str, relation: str, answer: Answer) -> None:
        print(json.dumps(Row(model, relation, answer).to_json()), file=output)

    ask_all(todo, request["jobs"], request["limit"], report)


def _import(points: Sequence[str]) -> None:
    """Import what the processes share. ``points`` are the shims that the releases need."""
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)
    shims.import_upstream(points, ())
    for name in (*IMPORTED, *{question.module for question in QUESTIONS.values()}):
        with suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    supervisor.end_with_parent()
    main()
