"""Accidents of a run's folder and its files: run.json, exits, and the files of the ranks."""

from __future__ import annotations

import shutil
from typing import Any

from harness.rank.exits import EXIT_FILE
from tests.tampering.changes import Change, Table, cases, drop, gone, to, within

FILE = "deepspeed/runtime/bf16_optimizer.py"
RANK_1 = "rank_1.jsonl"


def copied_to(name: str) -> Change:
    return lambda folder: shutil.copy(folder / RANK_1, folder / name)


def with_line(index: int, line: str) -> Change:
    return lambda lines: lines.insert(index, line)


def repeated(records: list[dict[str, Any]]) -> None:
    records.insert(4, dict(records[3]))


def upstream(change: Change) -> Change:
    return within("modules", within("deepspeed", change))


def watched(change: Change) -> Change:
    return within("files", within(FILE, change))


FAILED = to(code=1, failure={"rank": 1, "message": "RuntimeError: out of luck"})

FILES: Table = {
    "bf16_clip buggy * folder": [
        (lambda folder: (folder / RANK_1).unlink(), "rank 1 left no complete records"),
        (copied_to(f"{RANK_1}.part"), "rank_1.jsonl is there twice, finished and unfinished"),
        (copied_to("rank_2.jsonl"), "rank_2.jsonl belongs to no rank of this trial"),
        (copied_to("rank_0.jsonl"), "rank 0: line 1 of its records is not from this rank"),
        (shutil.rmtree, "this trial never ended"),
        (lambda folder: (folder / EXIT_FILE).unlink(), "has no exit.json"),
        (lambda folder: (folder / EXIT_FILE).write_text('{"code": 0,'), "exit.json"),
        (lambda folder: (folder / EXIT_FILE).write_text(""), "exit.json"),
    ],
    "bf16_clip buggy 1 lines": [
        (list.clear, "rank 1: its records are cut off after 0 lines"),
        (list.pop, "rank 1: its records are cut off"),
        (lambda lines: lines.append(lines.pop()[:-8]), "rank 1: its records are cut off"),
        (with_line(1, "\udcff\x00\n"), "rank 1: line 2 of its records: it is not JSON"),
        (with_line(0, "[1, 2]\n"), "line 1 of its records is not from this rank"),
        (lambda lines: lines.pop(3), "step 3 of 'step', but the plan has step 2"),
    ],
    "bf16_clip buggy 1 phases": [(to(rank=0), "of its records is not from this rank")],
    "bf16_clip buggy 1 begin": [
        (to(variant="other"), "rank 1: its records are from the variant other, not"),
        (to(run="0"), "rank 1: its records are from another run"),
        (to(world_size=4), "rank 1: its records are from a trial on 4 ranks, not 2"),
    ],
    "bf16_clip buggy 0 records": [
        (drop("step", -1), "rank 0: step 10 of 'step' is planned, but missing")
    ],
    "bf16_clip buggy 1 records": [
        (repeated, "step 2 of 'step', but the plan has step 3 of 'step' next"),
        (drop("upstream"), "rank 1: 'upstream' is planned, but missing"),
    ],
    "bf16_clip buggy 1 step": [
        (to(kind="stop"), "rank 1: a record of kind 'stop', which is not planned"),
        (to(no_fact={}), "step 1 of 'step': no_fact is not expected"),
        (gone("differing"), "step 1 of 'step': differing is missing"),
    ],
    "bf16_clip buggy 0 step": [
        (to(grad_norm=float("nan")), "of its records: it contains NaN, which is not a number"),
        (to(grad_norm="inf"), "rank 0: step 1 of 'step': grad_norm is 'inf', expected a"),
        (to(grad_norm=-1.0), "rank 0: step 1 of 'step': grad_norm is -1.0, expected at"),
    ],
    "bf16_clip buggy 1 upstream": [
        (to(changed=["a.py"]), "is damaged: rank 1 loaded a.py not as it was made"),
        (to(changed=["a.py", "b.py"]), "rank 1 loaded a.py, one of 2, not as it was made"),
        (upstream(to(file="/elsewhere/site/x.py")), "rank 1 loaded deepspeed from /elsewhere/"),
        (within("modules", gone("megatron-core")), "rank 1 loaded megatron-core from nowhere"),
        (upstream(to(version="0.19.7")), "rank 1 ran deepspeed 0.19.7, not 0.19.8"),
        (watched(to(sha256="0" * 64)), f"rank 1 ran another {FILE}"),
        (watched(to(path=f"/elsewhere/{FILE}")), f"rank 1 ran another {FILE}"),
        (within("files", to(**{FILE: None})), f"rank 1 never loaded {FILE}"),
    ],
    "bf16_clip buggy * exit.json": [
        (FAILED, "rank 1 failed first: RuntimeError: out of luck"),
        (to(code=-9), "torchrun left with exit code -9"),
        (to(timed_out=True), "ended at its deadline"),
        (to(survivors=[4711]), "processes (4711,) could not be killed"),
        (to(interrupted=True), "interrupted"),
        (within("of", to(variant="a")), "exit.json is from the variant a, not"),
        (within("of", to(run="0")), "exit.json is from another run"),
    ],
}


def renamed(run: dict[str, Any]) -> None:
    run["trials"]["bugged"] = run["trials"].pop("buggy")


def beyond_its_bounds(run: dict[str, Any]) -> None:
    run["trials"]["buggy"]["params"]["steps"] = 0


def of_no_commit(run: dict[str, Any]) -> None:
    run["source"] = {"commit": None, "dirty": None}
    run["scenario"] = "bf16_clap"


def of_another_commit(run: dict[str, Any]) -> None:
    run["source"] = {"commit": "0123456789abcdef", "dirty": False}
    run["scenario"] = "bf16_clap"


RUN_CONTENT: Table = {
    "bf16_clip buggy * run.json": [
        (to(run="0"), "exit.json is from another run"),
        (renamed, "this catalogue has no variant 'bugged'"),
        (beyond_its_bounds, "this catalogue does not accept its parameters"),
        (to(scenario="bf16_clap"), "this catalogue has no scenario 'bf16_clap'"),
        (to(format=3), "has an older format"),
        (to(format=99), "has format 99, and this version reads 4"),
        (of_another_commit, "it is from the catalogue of commit 0123456789ab"),
        (of_no_commit, "it names no commit"),
    ]
}

LAUNCH: Table = {
    "tied_resume_norm fixed/resume * folder": [(shutil.rmtree, "has no exit.json")],
    "tied_resume_norm fixed/resume 1 lines": [(list.pop, "rank 1: its records are cut")],
}

ALL = [*cases(FILES), *cases(RUN_CONTENT), *cases(LAUNCH)]
