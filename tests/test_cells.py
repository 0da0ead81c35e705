"""Cells, and the matrix and bisect that ask for them, on releases that are made up."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness import catalog, config, machine
from harness.__main__ import main
from harness.commands import matrix
from harness.errors import Fault, HarnessError, Inconclusive, Unsupported, UserError
from harness.results import RunResult
from harness.run_config import RunConfig
from harness.spec import RELEASED, Outcome
from harness.sweep import cell_store, cells, streak
from harness.sweep.cell import Cell, Status
from harness.trial.run import stack_of
from harness.upstream import index, overlay
from tests.made_up import KNOWN, YES, Upstream, cell, published

PYTHON = "{}.{}".format(*sys.version_info)
Capture = pytest.CaptureFixture[str]
SWEEP = ("matrix", "scenario=rope_zero_init", "pins.transformers=4.36:4.38")


def test_each_release_gets_an_answer_of_its_own(upstream: Upstream, capsys: Capture) -> None:
    assert main([*SWEEP]) == 0
    out = capsys.readouterr().out
    assert sorted(upstream.tested) == ["4.36.2", "4.37.0", "4.37.2", "4.38.0", "4.38.2"]
    table = [line.split() for line in out.rpartition("transformers  answer")[2].splitlines()]
    answers = {row[0]: " ".join(row[1:3]) for row in table if row and row[0] in KNOWN}
    assert answers["4.37.2"] == "affected 0"
    assert answers["4.38.0"].startswith("not affected")
    assert "5 cells: 3 affected, 2 not affected" in out


def test_the_imports_of_the_next_cells_are_done_ahead(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[str] = []
    note = lambda config, pool: prepared.append(config.pins["transformers"])  # noqa: E731
    monkeypatch.setattr("harness.trial.prefetch.prepared", note)
    monkeypatch.setattr(cells, "_make_overlay", lambda config, *_: "4.37.2" not in str(config.pins))
    assert main([*SWEEP, "jobs=1"]) == 0
    # Not the first one, which is asked at once; nor the one that is stored.
    assert sorted(prepared) == ["4.37.0", "4.38.0", "4.38.2"]


def test_what_was_answered_is_not_asked_again(upstream: Upstream, capsys: Capture) -> None:
    assert main([*SWEEP]) == 0
    upstream.tested.clear()
    assert main([*SWEEP]) == 0
    assert upstream.tested == []
    assert "(5 stored)" in capsys.readouterr().out
    assert main([*SWEEP[:2], "--again", *SWEEP[2:]]) == 0  # options may stand anywhere
    assert len(upstream.tested) == 5


def test_another_question_is_not_answered_from_the_store(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["matrix", "scenario=rope_zero_init", "pins.transformers=4.36.2"]
    changes = ["seed=1", "scenario.tokens=400", "launch.threads=2", "pins.deepspeed=0.19.8"]
    facts = {**machine.facts(), "torch": "another"}
    for number, change in enumerate([None, *changes, "code", "torch"], 1):
        with monkeypatch.context() as patch:
            if change == "code":
                patch.setattr(cell_store, "code", lambda scenario: "another")
            elif change == "torch":
                patch.setattr(machine, "facts", lambda: facts)
            assert main([*words, change] if change in changes else words) == 0
        assert len(upstream.tested) == number, change


def test_the_digest_of_the_code_sees_the_scenario_and_what_it_imports() -> None:
    paths = catalog.sources(catalog.places()["rope_zero_init"], "harness.trial.grade")
    files = {f"{path.parent.name}/{path.name}" for path in paths}
    own = {f"rope_zero_init/{name}.py" for name in ("scenario", "models", "buffers")}
    assert own | {"trial/grade.py", "trial/records.py"} <= files
    assert "bf16_clip/scenario.py" not in files
    assert cell_store.code("rope_zero_init") != cell_store.code("bf16_clip")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:40],
        lambda text: "",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"status": "affected"', '"status": "not affected"'),
        lambda text: text.replace('"seconds": 1.5', '"seconds": 1.6'),
        lambda text: re.sub(r'"digest": "\w+"', '"digest": null', text),
    ],
    ids=["cut", "empty", "deep", "another answer", "other seconds", "no digest"],
)
def test_a_stored_answer_that_was_spoilt_or_edited_is_named_and_asked_again(
    upstream: Upstream, cache: Path, capsys: Capture, spoil: Callable[[str], str]
) -> None:
    words = ["matrix", "scenario=rope_zero_init", "pins.transformers=4.36.2"]
    assert main(words) == 0
    (file,) = (cache / "cells").iterdir()
    whole = file.read_text()
    file.write_text(spoil(whole))
    capsys.readouterr()
    for _ in range(2):
        assert main(words) == 0
    told = capsys.readouterr()
    assert upstream.tested == ["4.36.2"] * 2
    assert "4.36.2: affected  [1.5 s]" in told.out
    assert told.err == f"harness: {file} was damaged or edited: its release is tested again\n"


QUESTION = {
    "scenario": "rope_zero_init",
    "pins": dict(cell("4.36.2", YES).pins),
    "lane": "cpu",
    "seed": 0,
    "code": "digest",
}


def test_a_stored_answer_is_that_to_the_same_question(cache: Path) -> None:
    cell_store.store(cache, QUESTION, cell("4.36.2", YES))
    assert cell_store.read(cache, dict(reversed(QUESTION.items()))) == cell("4.36.2", YES)
    for part in QUESTION:
        assert cell_store.read(cache, {**QUESTION, part: "another"}) is None


@pytest.mark.parametrize("part", QUESTION)
def test_a_cell_about_something_else_is_not_believed(cache: Path, part: str) -> None:
    """Under the name of the right one, as a cache that was put together by hand may have it."""
    cell_store.store(cache, QUESTION, cell("4.36.2", YES))
    (file,) = (cache / "cells").iterdir()
    told = json.loads(file.read_text())
    for where in told.values():
        if part in where:
            kept, where[part] = where[part], "another"
            file.write_text(json.dumps(told))
            assert cell_store.read(cache, QUESTION) is None
            where[part] = kept
    file.write_text(json.dumps(told))
    assert cell_store.read(cache, QUESTION)


def test_a_question_holds_all_that_an_answer_depends_on(cache: Path) -> None:
    asked = config.compose(["scenario=rope_zero_init", "variant=released", "launch=cpu"])
    stack = stack_of(asked, RELEASED, cache)
    told = cell_store.inputs_of(asked, stack)
    here = machine.facts()
    assert (told["python"], told["torch"]) == (here["python"], here["torch"])
    assert told["overlay"] == overlay.key(stack)
    assert told["pins"] == stack.pins
    assert told["params"] == json.loads(json.dumps(asdict(asked.params)))
    assert told["code"] == cell_store.code("rope_zero_init")
    assert (told["seed"], told["threads"], told["lane"]) == (0, asked.launch.threads, "cpu")


WHOLE = json.loads(json.dumps(cell("4.36.2", YES).to_json()))


@pytest.mark.parametrize("name", WHOLE)
def test_a_cell_that_lacks_a_field_is_not_believed(name: str) -> None:
    with pytest.raises(ValueError, match="not the fields"):
        Cell.from_json({k: v for k, v in WHOLE.items() if k != name})


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("scenario", None),
        ("pins", ["transformers"]),
        ("pins", {"transformers": 4}),
        ("status", "Affected"),
        ("status", None),
        ("status", ["affected"]),
        ("reason", 1),
        ("lane", None),
        ("torch", 2.0),
        ("date", "yesterday"),
        ("seconds", "1.5"),
        ("seconds", True),
        ("seconds", float("nan")),
        ("seconds", -1),
        ("step", "0"),
        ("step", True),
        ("step", -1),
        ("run", 5),
        ("log", "line"),
        ("log", [1]),
        ("stored", "no"),
    ],
)
def test_a_cell_with_an_odd_field_is_not_believed(name: str, odd: object) -> None:
    with pytest.raises(ValueError, match=f"no {name} of a cell"):
        Cell.from_json({**WHOLE, name: odd})


@pytest.mark.parametrize("told", [None, [], "affected", {}, {**WHOLE, "more": 1}], ids=str)
def test_what_is_no_cell_is_not_believed(told: object) -> None:
    with pytest.raises(ValueError, match="not the fields"):
        Cell.from_json(told)


@pytest.mark.parametrize("error", [Fault("no network"), UserError("no release of that name")])
def test_what_could_not_be_asked_is_told_apart_where_that_is_wanted(
    upstream: Upstream, error: Exception
) -> None:
    upstream.error = error
    asking = [config.compose(["scenario=rope_zero_init", "variant=released"])]
    lost: list[tuple[int, HarnessError]] = []
    told = cells.find_all(asking, jobs=1, failed=lambda *one: lost.append(one))
    assert list(told) == []
    assert lost == [(0, error)]


def test_a_fault_is_an_inconclusive_cell_where_nobody_tells_it_apart(upstream: Upstream) -> None:
    upstream.error = Fault("no network")
    asking = [config.compose(["scenario=rope_zero_init", "variant=released"])]
    ((_, cell_),) = cells.find_all(asking, jobs=1)
    assert (cell_.status, cell_.reason) == (Status.INCONCLUSIVE, "no network")


def test_a_release_that_cannot_be_installed_is_a_cell_in_either_case(upstream: Upstream) -> None:
    upstream.error = Inconclusive("it could not be installed")
    asking = [config.compose(["scenario=rope_zero_init", "variant=released"])]
    ((_, cell_),) = cells.find_all(asking, jobs=1, failed=lambda *_: None)
    assert cell_.status is Status.INCONCLUSIVE


def test_a_full_disk_ends_a_sweep_with_one_line(
    upstream: Upstream, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cell_store, "write_whole", full)
    assert main([*SWEEP]) == 3
    told = capsys.readouterr().err
    assert told.startswith(f"harness: no room on the disk for {cache / 'cells'}")
    assert told.count("\n") == 1
    assert list((cache / "cells").iterdir()) == []


def test_where_its_files_cannot_go_a_sweep_does_not_begin(
    upstream: Upstream, tmp_path: Path, capsys: Capture
) -> None:
    for option in ("--csv", "--json"):
        assert main([*SWEEP, option, str(tmp_path / "none" / "cells")]) == 2
        assert f"no folder {tmp_path / 'none'}" in capsys.readouterr().err
    assert upstream.tested == []


def test_a_sweep_that_was_broken_off_goes_on_where_it_stopped(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = upstream.__call__

    def killed(asked: RunConfig, *rest: object) -> tuple[RunResult, Path]:
        if len(upstream.tested) == 3:
            raise KeyboardInterrupt
        return whole(asked, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cells, "run", killed)
    assert main([*SWEEP, "jobs=1"]) == 130
    monkeypatch.setattr(cells, "run", upstream)
    first = list(upstream.tested)
    assert main([*SWEEP, "jobs=1"]) == 0
    assert len(first) == 3
    assert not set(first) & set(upstream.tested[3:])


@pytest.mark.parametrize(
    ("timed_out", "stored"), [(False, True), (True, False)], ids=["a crash", "a deadline"]
)
def test_an_inconclusive_cell_is_kept_unless_time_ran_out(
    upstream: Upstream, capsys: Capture, timed_out: bool, stored: bool
) -> None:
    upstream.outcomes, upstream.timed_out = {"4.37.0": Outcome.INCONCLUSIVE}, timed_out
    assert main([*SWEEP]) == 3
    assert "transformers 4.37.0: inconclusive" in capsys.readouterr().out
    upstream.tested.clear()
    assert main([*SWEEP]) == 3
    assert upstream.tested == ([] if stored else ["4.37.0"])


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Unsupported("no wheels for this Python"), Status.UNSUPPORTED, 0),
        (Inconclusive("no network"), Status.INCONCLUSIVE, 3),
    ],
)
def test_what_cannot_be_run_is_told_with_its_reason_and_not_kept(
    upstream: Upstream, tmp_path: Path, error: Exception, status: Status, code: int
) -> None:
    upstream.error = error
    assert main([*SWEEP, "--json", str(tmp_path / "cells.json")]) == code
    told = json.loads((tmp_path / "cells.json").read_text())
    assert {cell["status"] for cell in told} == {status}
    assert told[0]["reason"] == str(error)
    upstream.error = None
    assert main([*SWEEP]) == 0
    assert len(upstream.tested) == 10


@pytest.mark.parametrize(
    ("cpus", "gpus", "words", "at_once"),
    [
        (2, 0, (), 1),
        (8, 0, (), 4),
        (8, 0, ("launch.threads=4",), 1),
        (64, 8, (), 4),
        (64, 3, (), 1),
        (64, 8, ("launch=cpu",), 32),
    ],
)
def test_as_many_cells_run_at_once_as_cores_or_gpus_have_room_for(
    monkeypatch: pytest.MonkeyPatch, cpus: int, gpus: int, words: tuple[str, ...], at_once: int
) -> None:
    there = tuple(machine.Gpu(str(n), f"U{n}", "H") for n in range(gpus))
    monkeypatch.setattr(machine, "gpus", lambda: there)
    monkeypatch.setattr(machine, "cores", lambda: cpus)
    assert cells.room(config.compose(["scenario=rope_zero_init", *words])) == at_once


def test_two_packages_make_a_grid_and_the_files_hold_every_cell(
    upstream: Upstream, tmp_path: Path, capsys: Capture
) -> None:
    files = ["--csv", str(tmp_path / "cells.csv"), "--json", str(tmp_path / "cells.json")]
    assert (
        main(
            [*SWEEP[:2], "pins.transformers=4.37.2,4.38.2", "pins.deepspeed=0.13.3,0.19.8", *files]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert r"transformers \ deepspeed" in out
    rows = [line.split() for line in out.partition(r"\ deepspeed")[2].splitlines()[1:3]]
    assert rows == [
        ["4.37.2", "affected", "affected"],
        ["4.38.2", "not", "affected", "not", "affected"],
    ]
    lines = (tmp_path / "cells.csv").read_text().splitlines()
    assert lines[0].startswith("transformers,deepspeed,status,step,seconds,lane,python,torch,date")
    assert lines[1].startswith("4.37.2,0.13.3,affected,0,1.5,cpu,3.11.7,2.13.0,")
    assert len(json.loads((tmp_path / "cells.json").read_text())) == 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["matrix"], "KEY=VALUE"),
        (["matrix", "pins.transformers=4.36:"], "matrix tests one scenario: scenario=NAME."),
        (["matrix", "scenario=all", "pins.transformers=4.36:"], "matrix tests one scenario"),
        (["matrix", "scenario=rope_zero", "pins.transformers=4.36:"], "mean rope_zero_init?"),
        (["matrix", "scenario=rope_zero_init"], "such as pins.transformers=minor"),
        (["matrix", "scenario=device_math"], "this scenario pins none"),
        ([*SWEEP[:2], "pins.apex=1:2"], "no pin of this scenario 'apex'. Choices: transformers"),
        ([*SWEEP[:2], "pins.transformers=9:"], "no release of transformers is in this range"),
        ([*SWEEP[:2], "pins.transformers=4.36.9"], "no release transformers==4.36.9"),
        ([*SWEEP, "variant=fixed"], "matrix tests releases as published: leave variant=fixed out"),
        ([*SWEEP, "scenario.tokens=3"], "scenario.tokens=3: must be"),
        (["bisect", *SWEEP[1:2], "pins.transformers=4.36.2"], "needs one package with a range"),
        (["bisect", *SWEEP[1:], "--apart", "0"], "--apart must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_asks_nothing(
    upstream: Upstream, capsys: Capture, words: list[str], told: str
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert upstream.tested == []


def test_bisect_names_the_neighbours_between_which_it_flips(
    upstream: Upstream, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [f"4.{minor}.{patch}" for minor in range(36, 40) for patch in range(5)]
    monkeypatch.setattr(index, "releases", published(*many))
    assert main(["bisect", "scenario=rope_zero_init", "pins.transformers=:"]) == 0
    out = capsys.readouterr().out
    assert "flips from affected to not affected between 4.37.4 and 4.38.0 (neighbours" in out
    assert "transformers 4.36.0 to 4.37.4: affected" in out
    assert len(upstream.tested) < 10 < len(many)


def test_bisect_says_what_stands_between_where_it_cannot_know(
    upstream: Upstream, capsys: Capture
) -> None:
    upstream.outcomes = {"4.37.2": Outcome.INCONCLUSIVE}
    assert main(["bisect", *SWEEP[1:], "--apart", "1"]) == 0
    assert "(not certain between: 4.37.2)" in capsys.readouterr().out


NO_WHEELS = "transformers=={0} could not be installed for Python 3.11: no wheels of tokenizers=={0}"
NOT_BUILT = "deepspeed==0.13.3 transformers=={0} could not be installed: setup.py of {0} failed"
OFFLINE = "no network and nothing in the cache for transformers=={0}: run once with a network"


def failing(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, text: str, kind: type[HarnessError]
) -> None:
    """Let every release but 4.38.2 fail before it runs."""

    def run(asked: RunConfig, *rest: object) -> tuple[RunResult, Path]:
        release = asked.pins["transformers"]
        if release != "4.38.2":
            raise kind(text.format(release))
        return upstream(asked, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cells, "run", run)


@pytest.mark.parametrize("verb", ["matrix", "bisect"])
@pytest.mark.parametrize(
    ("text", "kind", "row", "hint"),
    [
        (
            NO_WHEELS,
            Unsupported,
            "unsupported  [not run]  could not be installed for Python 3.11: no wheels of tok",
            f"failed alike: they may have no wheels for Python {PYTHON}; try another Python",
        ),
        (
            NOT_BUILT,
            Inconclusive,
            "inconclusive  [not run]  could not be installed: setup.py of",
            "failed alike: what builds or downloads them here (a compiler, a proxy) may be the",
        ),
    ],
)
def test_releases_that_cannot_be_installed_say_so_and_are_not_counted_as_run(
    upstream: Upstream,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    verb: str,
    text: str,
    kind: type[HarnessError],
    row: str,
    hint: str,
) -> None:
    failing(upstream, monkeypatch, text, kind)
    apart = ["--apart", "1"] if verb == "bisect" else ["jobs=1"]
    assert main([verb, *SWEEP[1:], *apart]) in (0, 3)
    out = capsys.readouterr().out
    assert f"transformers 4.36.2: {row}" in out
    assert out.count(hint) == 1
    if verb == "bisect":
        assert "tried 5 of 5 releases: 1 ran, 4 did not start" in out


def test_a_bisection_without_a_network_stops_after_three_releases(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    failing(upstream, monkeypatch, OFFLINE, Fault)
    assert main(["bisect", *SWEEP[1:], "--apart", "1"]) == 3
    told = capsys.readouterr()
    assert "4.38.0" not in told.out
    assert told.err == (
        "harness: 3 releases in a row failed alike: the cause is this machine or its network; "
        "results so far are stored, so run the command again once it works\n"
    )


def test_a_matrix_without_a_network_goes_on_with_what_is_stored(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    failing(upstream, monkeypatch, OFFLINE, Fault)
    assert main([*SWEEP, "jobs=1"]) == 3
    out = capsys.readouterr().out
    assert (
        out.count("3 releases in a row failed alike: the cause is this machine or its network") == 1
    )
    assert "4.38.2: not affected" in out


def test_failures_that_are_not_alike_suggest_nothing() -> None:
    counter = streak.Streak()
    reasons = ["a of 1.2 broke", "b broke", "a of 1.3 broke", "a of 1.4 broke"]
    lost = [replace(cell("4.36.2", Status.INCONCLUSIVE), reason=reason) for reason in reasons]
    assert [counter.hint(each) for each in lost] == ["", "", "", ""]
    assert counter.hint(cell("4.36.2", YES)) == ""
    assert [bool(counter.hint(lost[0])) for _ in range(5)] == [False, False, True, False, False]


def test_a_crash_is_a_run() -> None:
    crashed = replace(cell("4.36.2", Status.INCONCLUSIVE), run="runs/one")
    assert crashed.started
    assert streak.Streak().hint(crashed) == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["matrix", "scenario=rope_zero_init", "pins.transformers=4.36.2"], "1 cell: 1 affected"),
        (["matrix", "scenario=rope_zero_init", "pins.transformers=4.36.2"], "1 cell, as released"),
        (["bisect", *SWEEP[1:], "--apart", "9"], "tried 4 of 5 releases: 4 ran"),
    ],
)
def test_one_is_no_plural(upstream: Upstream, capsys: Capture, words: list[str], told: str) -> None:
    assert main(words) == 0
    assert told in capsys.readouterr().out


def test_the_clock_reckons_with_what_was_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock, ran = matrix.Clock(10), cell("4.36.2", YES)
    clock.tick(replace(ran, stored=True))
    assert clock.left() == "[1/10]"
    now[0] = 20.0
    clock.tick(ran)
    assert clock.left() == "[2/10, 3 min left]"
