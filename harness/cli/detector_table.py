"""measure the detectors: when each fires, its false alarms, and what it costs

    python -m harness detector_table RUNS > docs/detectors.md

Detection and false alarms are read from the newest run of each scenario under RUNS (make them with
``run scenario=all variant=all``); costs are measured here, now, on 2 ranks over gloo.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from harness import catalog
from harness.api.spec import BUGGY, Outcome, Records
from harness.cli import Arguments
from harness.runs.grade import grade_trial, run_of
from harness.runs.records import RUN_FILE
from harness.runs.results import TrialResult
from harness.system.errors import ExitCode
from harness.system.text import markdown_table
from scenarios.deepspeed.fp16_overflow import loss_scale


@dataclass(frozen=True)
class Detector:
    """A module of harness/detectors: what it checks, how often, and the scenarios that use it."""

    about: str
    when: str
    scenarios: tuple[str, ...]


DETECTORS = {
    "replicas": Detector(
        "replicated parameters are equal across a group", "a step", ("bf16_clip",)
    ),
    "tied": Detector(
        "tied copies are equal across their group",
        "a step",
        ("tied_grad_reduce", "tied_embedding_training"),
    ),
    "headroom": Detector(
        "fp16 has headroom before softmax, with trend",
        "a step",
        ("fp16_overflow", "fp16_overflow_stage0"),
    ),
    "state": Detector(
        "state after a load equals state before the save",
        "a load",
        ("tied_resume_weight", "tied_resume_norm"),
    ),
    "buffers": Detector(
        "buffers equal those of a reference built outside",
        "a start",
        ("rope_zero_init", "rope_zero_init_v5"),
    ),
}

ROUNDS = 5
WIDTH, LAYERS, VOCABULARY, SEQUENCE, BATCH = 512, 8, 8192, 256, 4


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("runs", type=Path, help="the folder of the runs to read")
    results = newest(parser.parse_args(arguments).runs)
    print(page(results, measure()))
    return ExitCode.AS_EXPECTED


Trials = list[tuple[TrialResult, Records]]


def newest(runs: Path) -> dict[str, Trials]:
    """The trials of the newest run of each scenario with all variants, graded again."""
    found = {}
    for file in sorted(runs.glob(f"*/{RUN_FILE}")):  # run folders are named by their time
        run = run_of(file.parent)
        module = catalog.load(run["scenario"])
        if set(run["trials"]) == set(module.SCENARIO.variants):
            graded = [grade_trial(run, file.parent, variant) for variant in run["trials"]]
            found[run["scenario"]] = [(trial, facts) for trial, facts in graded if facts]
    return found


def page(results: Mapping[str, Trials], costs: Mapping[str, float]) -> str:
    """The page in Markdown."""
    step = costs["training step"]
    columns = ["detector", "checks that", "called", "cost", "of a step", "fires in", "false alarms"]
    rows = []
    for name, detector in DETECTORS.items():
        cost = costs[name]
        fires, alarms = _seen(name, {s: results[s] for s in detector.scenarios if s in results})
        time_, share = f"{1e3 * cost:.1f} ms", f"{100 * cost / step:.1f} %"
        when = f"once {detector.when}"
        rows.append([f"`{name}`", detector.about, when, time_, share, fires, alarms])
    lines = [
        "# Detectors",
        "",
        "Each module of `harness/detectors/` works in any training loop. It needs torch; `tied`",
        "also needs `replicas` and `state`. Copy these files, or import them. This page is",
        "written by `python -m harness detector_table RUNS > docs/detectors.md`.",
        "",
        f"Costs: {date.today().isoformat()}, torch {torch.__version__}, Python "
        f"{platform.python_version()}, {os.cpu_count()} CPU cores, 2 ranks over gloo, median of "
        f"{ROUNDS}. The model has {LAYERS} layers of width {WIDTH} and {_millions():.0f} M "
        f"parameters; its training step takes {1e3 * step:.0f} ms.",
        "",
        markdown_table(columns, rows),
        "",
        "*Fires in*: the buggy variants in which it fires, and when. *False alarms*: variants of",
        "these scenarios in which it fires although nothing is wrong. `headroom` warns early:",
        "a false alarm is a variant in which no watched tensor passed 65504 later. The scenarios'",
        "pages name checks that miss the bugs, with figures.",
    ]
    return "\n".join(lines)


def _seen(name: str, results: Mapping[str, Trials]) -> tuple[str, str]:
    """Where a detector fired and when; its alarms where none was due."""
    fires, quiet, alarms = [], 0, 0
    for scenario, trials in results.items():
        for trial, records in trials:
            when = _warning(trial, records) if name == "headroom" else _finding(trial)
            if trial.variant == BUGGY and when:
                fires.append(f"`{scenario}` ({when})")
            if _nothing_wrong(name, trial, records):
                quiet += 1
                alarms += when is not None
    return ", ".join(fires) or "no run here", f"{alarms} of {quiet}" if quiet else ""


def _finding(trial: TrialResult) -> str | None:
    if trial.finding is None or trial.finding.step is None:
        return None
    return f"step {trial.finding.step}" if trial.finding.step else "before the first step"


def _warning(trial: TrialResult, records: Records) -> str | None:
    warned, finding = loss_scale.first_warning(records), trial.finding
    if warned is None:
        return None
    lead = f", {finding.step - warned} before the first nan" if finding and finding.step else ""
    return f"step {warned}{lead}"


def _nothing_wrong(name: str, trial: TrialResult, records: Records) -> bool:
    if name == "headroom":
        return loss_scale.first_overflow(records) is None
    return trial.expected is Outcome.CLEAN


def measure() -> dict[str, float]:
    """Seconds a call of each detector, and of a training step, on the slower of two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_measure_rank, (folder,), nprocs=2)
        ranks = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]
    return {name: max(rank[name] for rank in ranks) for name in ranks[0]}


@dataclass
class Subject:
    """What the detectors are measured on."""

    model: nn.Module
    tokens: Tensor
    scores: Tensor
    folder: Path


def _measure_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    heads = WIDTH // 64
    subject = Subject(
        model=_model(),
        tokens=torch.randint(VOCABULARY, (BATCH, SEQUENCE)),
        scores=torch.randn(BATCH, heads, SEQUENCE, SEQUENCE).half(),
        folder=Path(folder),
    )
    taken = {name: _median(call) for name, call in _calls(subject).items()}
    torch.save(taken, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def _calls(subject: Subject) -> dict[str, Callable[[], Any]]:
    """A call of each detector as a training loop would make it."""
    from harness.detectors.buffers import buffer_differences
    from harness.detectors.headroom import Headroom
    from harness.detectors.replicas import replica_differences
    from harness.detectors.state import changes_since, dump_state
    from harness.detectors.tied import tied_differences

    model, reference = subject.model, _rotary(1)
    small = [(n, p) for n, p in model.named_parameters() if p.ndim == 1]
    embedding = model.get_parameter("0.weight")
    rotary, headroom = _rotary(LAYERS), Headroom()
    dump_state(subject.folder / "dump", model)

    def probe() -> None:
        for layer in range(LAYERS):
            headroom.observe(f"layer {layer}", subject.scores)
        headroom.step()

    return {
        "training step": lambda: _train(model, subject.tokens),
        "replicas": lambda: replica_differences(small),
        "tied": lambda: tied_differences([("embedding", embedding, None)]),
        "headroom": probe,
        "state": lambda: changes_since(subject.folder / "dump", model),
        "buffers": lambda: buffer_differences(rotary, reference),
    }


def _model() -> nn.Sequential:
    layers = [
        nn.TransformerEncoderLayer(WIDTH, WIDTH // 64, 4 * WIDTH, batch_first=True)
        for _ in range(LAYERS)
    ]
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, head)


def _rotary(layers: int) -> nn.Module:
    """Buffers of the size that LLaMA's rotary embeddings have, a pair for each layer."""
    found = nn.ModuleList(nn.Module() for _ in range(layers))
    for layer in found:
        layer.register_buffer("cos", torch.ones(4096, 128))
        layer.register_buffer("sin", torch.zeros(4096, 128))
    return nn.ModuleDict({"layers": found})


def _train(model: nn.Module, tokens: Tensor) -> None:
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is None:
                continue
            dist.all_reduce(parameter.grad)
            parameter.sub_(parameter.grad, alpha=1e-6)


def _median(call: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(ROUNDS + 1):
        dist.barrier()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])  # the first one warms up


def _millions() -> float:
    return sum(p.numel() for p in _model().parameters()) / 1e6
