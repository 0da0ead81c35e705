"""run.json held against the catalogue: a changed one, or another catalogue's, proves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.spec import Inconclusive
from harness.trial.records import RUN_FILE
from tests.recording import Recording

Run = dict[str, Any]


def trial(**changes: Any) -> Callable[[Run], None]:
    return lambda run: run["trials"]["buggy"].update(changes)


def top(**changes: Any) -> Callable[[Run], None]:
    return lambda run: run.update(changes)


def renamed(run: Run) -> None:
    run["trials"]["bugged"] = run["trials"].pop("buggy")


def unlocked(run: Run) -> None:
    del run["trials"]["fixed"]["overlay"]["lock"]


def another_knob(run: Run) -> None:
    run["params"]["momentum"] = 0.9


def beyond_its_bounds(run: Run) -> None:
    for told in (run, *run["trials"].values()):
        told["params"] = {**told["params"], "steps": 0}


def locked(*lines: str) -> Callable[[Run], None]:
    return lambda run: run["trials"]["buggy"]["overlay"].update(lock=list(lines))


MEGATRON = "megatron-core==0.16.1"


def another_edit(run: Run) -> None:
    run["trials"]["buggy"]["defects"] = {"filter_for_clipping_too": "0" * 32}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (trial(expect="clean"), 'buggy: its expect: "clean", where the catalogue has "symptom"'),
        (trial(expect=None), "buggy: its expect: null"),
        (trial(triggers=False), "buggy: its triggers: false"),
        (trial(triggers="yes"), "buggy: triggers is 'yes'"),
        (trial(ranks=1), "buggy: its ranks: 1, where the catalogue has 2"),
        (trial(acts=["", ""]), "buggy: its acts"),
        (trial(acts=[]), "buggy: its acts"),
        (trial(defects={}), "buggy: its defects: {}"),
        (another_edit, "buggy: its defects"),
        (trial(pins={"deepspeed": "0.19.8"}), "buggy: its pins"),
        (trial(files={}), "buggy: not the files with the bug"),
        (trial(files={"deepspeed/__init__.py": "0" * 64}), "buggy: not the files with the bug"),
        (trial(watched=[]), r"buggy: its watched: \[\]"),
        (trial(shims=[]), r"buggy: its shims: \[\]"),
        (trial(params={}), "buggy: its params: {}"),
        (trial(modules={}), "buggy: its modules: {}"),
        (trial(also=1), "buggy: also was not promised"),
        (renamed, "this catalogue has no bugged"),
        (unlocked, "fixed: overlay lock is missing"),
        (locked(), "buggy: its lock has no deepspeed, and its pins 0.19.8"),
        (locked(MEGATRON), "buggy: its lock has no deepspeed, and its pins 0.19.8"),
        (locked("deepspeed==0.19.7 \\", MEGATRON), "its lock has deepspeed 0.19.7, and its pins"),
        (locked("deepspeed==0.19.8", "megatron-core==0.16.0"), "has megatron-core 0.16.0, and its"),
        (locked("deepspeed==0.19.8", "deepspeed==0.19.7", MEGATRON), "0.19.8, 0.19.7, and its"),
        (another_knob, "its parameters or pins are none of this catalogue"),
        (beyond_its_bounds, "its parameters or pins are none of this catalogue"),
        (top(scenario="bf16_clap"), "this catalogue has no scenario 'bf16_clap'"),
        (top(scenario=[]), r"scenario is \[\], and no text"),
        (top(lane="tpu"), "lane is 'tpu', and not cpu or gpu"),
        (top(seed="0"), "seed is '0', and no whole number"),
        (top(trials={}), "names no trial"),
        (top(trials=[]), r"trials is \[\], and nothing by name"),
        (top(pins={"deepspeed": "0.18.0"}), "its pins"),
        (top(pins={"numpy": "2"}), "its parameters or pins are none of this catalogue"),
        (top(installed=True), "its pins"),
        (top(format="2"), "is not the record of a run"),
        (top(format=1), "has an older format"),
        (top(format=99), "has format 99, and this version reads 2"),
    ],
)
def test_a_run_json_that_says_something_else_is_inconclusive(
    change: Callable[[Run], None], said: str, recording: Recording
) -> None:
    with recording.run() as run:
        change(run)
    with pytest.raises(Inconclusive, match=said):
        recording.grade()


def test_a_lock_names_its_packages_with_or_without_hashes_and_markers(
    recording: Recording,
) -> None:
    marked = "Megatron_Core==0.16.1 ; python_full_version >= '3.10'"
    with recording.run() as run:
        locked("deepspeed==0.19.8 \\", "    --hash=sha256:0a", marked)(run)
    assert recording.grade().verdict.value == "reproduced"


def test_a_key_that_run_json_has_twice_is_refused(recording: Recording) -> None:
    file = recording.folder / RUN_FILE
    file.write_text(file.read_text().replace('"seed": 0', '"seed": 1, "seed": 0', 1))
    with pytest.raises(Inconclusive, match=r"run\.json: has the key 'seed' twice in one object"):
        recording.grade()


def test_whose_catalogue_it_is_of_is_told_by_the_commit(recording: Recording) -> None:
    with recording.run() as run:
        run["source"] = {"commit": "0123456789abcdef", "dirty": False}
        run["trials"]["buggy"]["expect"] = "clean"
    with pytest.raises(Inconclusive, match="another catalogue, that of commit 0123456789ab"):
        recording.grade()


def test_a_run_json_that_was_changed_is_not_the_one_that_the_ranks_read(
    recording: Recording,
) -> None:
    file = recording.folder / RUN_FILE
    run = json.loads(file.read_text())
    run["seed"] += 1
    file.write_text(json.dumps(run))
    for told in recording.grade().trials:
        assert told.reason == "exit.json is of another run.json: one of the two was changed"


def test_white_space_and_the_order_of_names_change_nothing(recording: Recording) -> None:
    file = recording.folder / RUN_FILE
    run = json.loads(file.read_text())
    file.write_text(json.dumps(run, indent=7, sort_keys=True))
    assert recording.grade().verdict.value == "reproduced"
