"""TrainCheck: learns rules from traces of healthy runs, and checks them on the trace of another.

Needs the package ``traincheck`` in this environment and in that of the ranks. A rank traces torch's
functions, and the model's parameters after each step. Two healthy runs give the rules; a run that
breaks one of them is an alarm.

Source: https://github.com/OrderLab/TrainCheck, "Training with Confidence", OSDI 2025.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

WITHIN = "trace_*"
"""The files of a trace, in the folder of a process."""


class Detector:
    """Traces a process, learns rules from traces, and checks them."""

    def record(self, path: Path) -> None:
        import torch
        from traincheck.config import config
        from traincheck.instrumentor.tracer import Instrumentor

        os.environ["TRAINCHECK_OUTPUT_DIR"] = str(path)
        config.INSTR_DESCRIPTORS, config.MODEL_TRACKER_STYLE = False, "sampler"
        Instrumentor(torch, scan_proxy_in_args=False, use_full_instr=False).instrument()

    def attach(self, model: Any, optimizer: Any, loader: Any = None, *, group: Any = None) -> None:
        import torch
        from traincheck import annotate_stage
        from traincheck.instrumentor import VarSampler

        annotate_stage("training")
        if isinstance(optimizer, torch.optim.Optimizer):
            VarSampler(model, "model").register_hook(optimizer)

    def step(self, number: int) -> None:
        from traincheck.instrumentor.control import start_step

        start_step()

    def fit(self, runs: Sequence[Path]) -> None:
        """Infer the rules that hold in all of these runs."""
        from traincheck.infer_engine import InferEngine

        with _silent():
            self._rules, _ = InferEngine([_trace(run) for run in runs], []).infer_multi_trace()

    def judge(self, run: Path) -> str | None:
        from traincheck.checker import check_engine

        with _silent():
            results = check_engine(_trace(run), self._rules, check_relation_first=False)
        broken = [check.invariant.text_description for check in results if not check.check_passed]
        if not broken:
            return None
        return f"{len(broken)} of {len(self._rules)} rules are broken: {broken[0]}"


def _trace(run: Path) -> Any:
    from traincheck.trace import select_trace_implementation

    _, read = select_trace_implementation("pandas")
    return read([str(file) for file in sorted(run.rglob(WITHIN))])


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
