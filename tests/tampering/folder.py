"""Changes of a run's folder and its files: run.json, exits, and the files of the ranks."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from harness.trial import loaded_files
from harness.trial.records import EXIT_FILE, RUN_FILE
from tests.recording import Recording, changing
from tests.tampering.changes import Change, Table, cases, gone, less, to, within

FILE = "deepspeed/runtime/bf16_optimizer.py"
RANK_1 = "rank_1.jsonl"
MEGATRON = "megatron-core==0.16.1"


def missing_rank(folder: Path) -> None:
    (folder / RANK_1).unlink()
    Recording(folder.parent).reseal(folder.name)


def replaced(name: str, old: str, new: str) -> Change:
    """Replace a text in a file, once."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def copied_to(name: str) -> Change:
    return lambda folder: shutil.copy(folder / RANK_1, folder / name)


def linked(folder: Path) -> None:
    (folder / RANK_1).symlink_to((folder / RANK_1).rename(folder / "x"))


def elsewhere(folder: Path) -> None:
    folder.symlink_to(folder.rename(f"{folder}_elsewhere"))


def no_lists(folder: Path) -> None:
    shutil.rmtree(folder.parent / loaded_files.LISTS)


def with_line(index: int, line: str) -> Change:
    return lambda lines: lines.insert(index, line)


def repeated(records: list[dict[str, Any]]) -> None:
    records.insert(4, dict(records[3]))


def fifo(folder: Path) -> None:
    (folder / RANK_1).unlink()
    os.mkfifo(folder / RANK_1)


def endless(folder: Path) -> None:
    with (folder / RANK_1).open("r+b") as file:
        file.truncate(10 << 30)  # sparse: it takes no room


def list_with_a_file_twice(folder: Path) -> None:
    for file in (folder.parent / loaded_files.LISTS).glob("*.json"):
        file.write_text(file.read_text().replace(f'"{FILE}"', f'"{FILE}": "", "{FILE}"', 1))


def list_that_was_changed(folder: Path) -> None:
    for file in (folder.parent / loaded_files.LISTS).glob("*.json"):
        with changing(file) as listed:
            listed["one_more.py"] = "0" * 64


def another_seed(folder: Path) -> None:
    with changing(folder.parent / RUN_FILE) as run:
        run["seed"] += 1


def loss_twice(lines: list[str]) -> None:
    lines[2] = lines[2].replace('"loss": ', '"loss": 9, "loss": ', 1)


def in_another_order(folder: Path) -> None:
    file = folder.parent / RUN_FILE
    file.write_text(json.dumps(json.loads(file.read_text()), indent=7, sort_keys=True))


def listed(change: Change) -> Change:
    """Change each rank's list of loaded files, and let made.json agree with it."""

    def tamper(folder: Path) -> None:
        run = Recording(folder.parent)
        for rank in (0, 1):
            with run.record(folder.name, "upstream", rank) as proof:
                files = loaded_files.files(run.folder, proof["loaded"])
                change(files)
                proof["loaded"] = loaded_files.keep(run.folder, files)
        with changing(folder / loaded_files.MADE_FILE) as made:
            made["loaded"] = {"0": proof["loaded"], "1": proof["loaded"]}

    return tamper


def upstream(change: Change) -> Change:
    return within("modules", within("deepspeed", change))


def watched(change: Change) -> Change:
    return within("files", within(FILE, change))


FAILED = to(code=1, failure={"rank": 1, "message": "RuntimeError: out of luck"})
EXIT = "not the record of an exit: "

FILES: Table = {
    "bf16_clip buggy * folder": [
        (missing_rank, "rank 1 left no complete records"),
        (copied_to(f"{RANK_1}.part"), "rank_1.jsonl is there twice, finished and unfinished"),
        (copied_to("rank_2.jsonl"), "rank_2.jsonl belongs to no rank of this trial"),
        (replaced(RANK_1, '"loss": ', '"loss":  '), "rank 1: its records were changed after"),
        (fifo, "rank_1.jsonl: is not a regular file"),
        (linked, "rank_1.jsonl: is a symbolic link"),
        (endless, "rank_1.jsonl: has 10737418240 bytes"),
        (elsewhere, "is a symbolic link"),
        (shutil.rmtree, "this trial never ended"),
        (lambda folder: (folder / EXIT_FILE).unlink(), "has no exit.json"),
        (lambda folder: (folder / EXIT_FILE).write_text('{"code": 0,'), "exit.json"),
        (
            replaced(EXIT_FILE, '"code": ', '"code": 9, "code": '),
            "exit.json: has the key 'code' twice",
        ),
        (lambda folder: (folder / loaded_files.MADE_FILE).unlink(), "made.json"),
        (no_lists, ".json: No such file or directory"),
        (list_with_a_file_twice, f"has the key '{FILE}' twice in one object"),
        (list_that_was_changed, ".json was changed since it was written"),
        (listed(dict.clear), "rank 0: its list of loaded files has no deepspeed/__init__"),
        (listed(to(**{FILE: "0" * 64})), f"loaded files has no {FILE} as"),
        (
            replaced("../run.json", '"seed": ', '"seed": 1, "seed": '),
            "run.json: has the key 'seed' twice",
        ),
        (another_seed, "exit.json is from another run.json"),
    ],
    "bf16_clip buggy 1 lines": [
        (list.clear, "rank 1: its records are cut off after 0 lines"),
        (list.pop, "rank 1: its records are cut off"),
        (lambda lines: lines.append(lines.pop()[:-8]), "rank 1: its records are cut off"),
        (with_line(1, "\udcff\x00\n"), "rank 1: line 2 of its records is not JSON"),
        (with_line(0, "[1, 2]\n"), "rank 1: line 1 of its records is not a record"),
        (with_line(0, "[" * 20_000 + "\n"), "rank 1: line 1 of its records is nested too deep"),
        (lambda lines: lines.pop(3), "step 3 of 'step', but the plan has step 2"),
        (loss_twice, "rank 1: line 3 of its records has the key 'loss' twice in one"),
    ],
    "bf16_clip buggy 1 phases": [(to(rank=0), "of its records is not from this rank")],
    "bf16_clip buggy 1 begin": [
        (to(variant="other"), "rank 1: its records are from the variant other, not"),
        (to(pid=[4711]), "rank 1: its first record does not identify its launch"),
    ],
    "bf16_clip buggy * begin": [(to(pid=4711), "ranks 0 and 1 have the same process id")],
    "bf16_clip buggy 0 records": [
        (less("step", -1), "rank 0: step 10 of 'step' is planned, but missing")
    ],
    "bf16_clip buggy 1 records": [
        (repeated, "step 2 of 'step', but the plan has step 3 of 'step' next"),
        (less("upstream"), "rank 1: its records do not begin with begin, start and"),
    ],
    "bf16_clip buggy 1 step": [
        (to(kind="stop"), "rank 1: a record of kind 'stop', which is not planned"),
        (to(no_fact={}), "step 1 of 'step': no_fact is not expected"),
        (gone("differing"), "step 1 of 'step': differing is missing"),
    ],
    "bf16_clip buggy 0 step": [
        (to(grad_norm=float("nan")), "of its records contains NaN, which is not a number"),
        (to(grad_norm="inf"), "rank 0: step 1 of 'step': grad_norm is 'inf', expected a"),
        (to(grad_norm=-1.0), "rank 0: step 1 of 'step': grad_norm is -1.0, expected at"),
    ],
    "bf16_clip buggy 1 upstream": [
        (to(loaded="0" * 32), "is damaged: rank 1 loaded a file of upstream not as it"),
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
        (to(code=False), f"{EXIT}code is False"),
        (to(timed_out=0), f"{EXIT}timed_out is 0"),
        (to(survivors=None), f"{EXIT}survivors is None"),
        (to(seconds="long"), f"{EXIT}seconds is 'long'"),
        (to(also=1), f"{EXIT}also is not expected"),
    ],
    "bf16_clip buggy * made.json": [
        (to(also=1), "made.json is not what it should be: also is not expected"),
        (within("of", to(variant="a")), "made.json is from the variant a, not"),
    ],
}


def trial(change: Change) -> Change:
    return within("trials", within("buggy", change))


def beyond_its_bounds(run: dict[str, Any]) -> None:
    for each in (run, *run["trials"].values()):
        each["params"] = {**each["params"], "steps": 0}


def renamed(run: dict[str, Any]) -> None:
    run["trials"]["bugged"] = run["trials"].pop("buggy")


def of_another_commit(run: dict[str, Any]) -> None:
    run["source"] = {"commit": "0123456789abcdef", "dirty": False}
    run["trials"]["buggy"]["expect"] = "clean"


def of_no_commit(run: dict[str, Any]) -> None:
    run["source"] = {"commit": None, "dirty": None}
    run["trials"]["buggy"]["expect"] = "clean"


def locked(*lines: str) -> Change:
    return trial(within("overlay", to(lock=list(lines))))


NONE_OF_THIS = "this catalogue does not accept its parameters or pins"
EDITED = {"filter_for_clipping_too": "0" * 32}

RUN_CONTENT: Table = {
    "bf16_clip buggy * run.json": [
        (
            trial(to(expect="clean")),
            'buggy: its expect: "clean", where the catalogue has "symptom"',
        ),
        (trial(to(triggers=False)), "buggy: its triggers: false"),
        (trial(to(triggers="yes")), "buggy: triggers is 'yes'"),
        (trial(to(ranks=1)), "buggy: its ranks: 1, where the catalogue has 2"),
        (trial(to(launches=["", ""])), "buggy: its launches"),
        (trial(to(defects=EDITED)), "buggy: its defects"),
        (trial(to(pins={"deepspeed": "0.19.8"})), "buggy: its pins"),
        (trial(to(files={})), "buggy: not the files with the bug"),
        (trial(to(files={"x.py": "0" * 64})), "buggy: not the files with the bug"),
        (trial(to(watched=[])), "buggy: its watched: []"),
        (trial(to(shims=[])), "buggy: its shims: []"),
        (trial(to(params={})), "buggy: its params: {}"),
        (trial(to(modules={})), "buggy: its modules: {}"),
        (trial(to(also=1)), "buggy: also is not expected"),
        (renamed, "this catalogue has no variant 'bugged'"),
        (trial(within("overlay", gone("lock"))), "buggy: overlay lock is missing"),
        (trial(within("overlay", to(site="/elsewhere"))), "its overlay is not in the folder of"),
        (locked(MEGATRON), "buggy: its lock has no deepspeed, and its pins 0.19.8"),
        (locked("deepspeed==0.19.7 \\", MEGATRON), "its lock has deepspeed 0.19.7, and its pins"),
        (locked("deepspeed==0.19.8", "deepspeed==0.19.7", MEGATRON), "0.19.8, 0.19.7, and its"),
        (within("params", to(momentum=0.9)), NONE_OF_THIS),
        (to(pins={"numpy": "2"}), "no pin 'numpy' in this scenario"),
        (beyond_its_bounds, NONE_OF_THIS),
        (to(scenario="bf16_clap"), "this catalogue has no scenario 'bf16_clap'"),
        (to(scenario=[]), "scenario is [], expected text"),
        (to(lane="tpu"), "lane is 'tpu', expected cpu or gpu"),
        (to(seed="0"), "seed is '0', expected a whole number"),
        (to(trials={}), "has no trial"),
        (to(trials=[]), "trials is [], expected an object"),
        (to(pins={"deepspeed": "0.18.0"}), "its pins"),
        (to(installed=True), "its pins"),
        (to(format="2"), "is not the record of a run"),
        (to(format=1), "has an older format"),
        (to(format=99), "has format 99, and this version reads 3"),
        (of_another_commit, "another catalogue, that of commit 0123456789ab"),
        (of_no_commit, "it names no commit"),
    ]
}

LAUNCH: Table = {
    "tied_resume_norm fixed/resume * folder": [(shutil.rmtree, "has no exit.json")],
    "tied_resume_norm fixed/resume 1 lines": [(list.pop, "rank 1: its records are cut")],
}

ALL = [*cases(FILES), *cases(RUN_CONTENT), *cases(LAUNCH)]

SYMPTOM = "12 of 15 replicated parameters differ"
HASHED = (
    "deepspeed==0.19.8 \\",
    "    --hash=sha256:0a",
    "Megatron_Core==0.16.1 ; python_full_version >= '3.10'",
)
BELIEVED = cases(
    {
        "bf16_clip buggy * run.json": [(locked(*HASHED), SYMPTOM)],
        "bf16_clip buggy * folder": [(in_another_order, SYMPTOM)],
    }
)
"""A lock may have hashes and markers; the order of names and white space do not matter."""
