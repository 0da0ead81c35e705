"""Cells, and the commands matrix and bisect, on made-up releases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.bugs import catalog
from harness.bugs.api.spec import Outcome
from harness.bugs.results import RunResult, Status
from harness.releases import index
from harness.run import cells, command_line, executor
from harness.run.run_config import RunConfig
from harness.system import machine, store
from harness.system.code import sources
from harness.system.errors import Fault, HarnessError, Inconclusive, Unsupported, UserError
from tests.made_up import KNOWN, Upstream, full_disk, published, set_gpus
from tests.sandbox import refused
from tests.schemas import complaints

Capture = pytest.CaptureFixture[str]
SWEEP = ("matrix", "scenario=rope_zero_init", "pins.transformers=4.36:4.38")
ONE = [*SWEEP[:2], "pins.transformers=4.36.2"]
RELEASED_RUN = command_line.compose(["scenario=rope_zero_init", "variant=released"])


def test_each_release_gets_its_own_status(upstream: Upstream, capsys: Capture) -> None:
    assert main([*SWEEP]) == 0
    out = capsys.readouterr().out
    assert sorted(upstream.tested) == ["4.36.2", "4.37.0", "4.37.2", "4.38.0", "4.38.2"]
    table = [line.split() for line in out.rpartition("transformers  answer")[2].splitlines()]
    rows = {row[0]: " ".join(row[1:3]) for row in table if row and row[0] in KNOWN}
    assert (rows["4.37.2"], rows["4.38.0"]) == ("affected 0", "not affected")
    assert "5 cells: 3 affected, 2 not affected" in out


def test_a_stored_cell_is_not_tested_again(upstream: Upstream, capsys: Capture) -> None:
    assert main([*SWEEP]) == 0
    upstream.tested.clear()
    assert main([*SWEEP]) == 0
    assert upstream.tested == []
    assert "(5 stored)" in capsys.readouterr().out
    assert main([*SWEEP[:2], "--again", *SWEEP[2:]]) == 0  # options may stand anywhere
    assert len(upstream.tested) == 5


def test_a_stored_cell_is_not_used_for_other_inputs(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["seed=1", "scenario.tokens=400", "launch.threads=2", "pins.deepspeed=0.19.8"]
    facts = machine.facts()
    for number, change in enumerate(["", *overrides, "code", "torch", "python"], 1):
        with monkeypatch.context() as patch:
            if change == "code":
                patch.setattr(cells, "code", lambda scenario: "another")
            elif change in ("torch", "python"):
                patch.setattr(machine, "facts", lambda name=change: {**facts, name: "another"})

            assert main([*ONE, change] if change in overrides else ONE) == 0
        assert len(upstream.tested) == number, change


def test_the_digest_of_the_code_sees_the_scenario_and_what_it_imports() -> None:
    paths = sources(catalog.places()["rope_zero_init"], "harness.run.grade")
    files = {f"{path.parent.name}/{path.name}" for path in paths}
    scenario_files = {"rope_zero_init/scenario.py", "transformers/_rope_models.py"}
    assert scenario_files | {"run/grade.py", "rank/run_folder.py"} <= files
    assert "bf16_clip/scenario.py" not in files
    assert cells.code("rope_zero_init") != cells.code("bf16_clip")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:40],
        lambda text: "",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"seconds": 1.5', '"minutes": 1'),
        lambda text: text.replace('"4.36.2"', '"4.36.1"', 1),
    ],
    ids=["cut", "empty", "deep", "no cell", "another cell"],
)
def test_a_damaged_stored_cell_is_named_and_its_release_is_tested_again(
    upstream: Upstream, cache: Path, capsys: Capture, spoil: Callable[[str], str]
) -> None:
    assert main(ONE) == 0
    (file,) = (cache / "cells").iterdir()
    file.write_text(spoil(file.read_text()))
    capsys.readouterr()
    for _ in range(2):
        assert main(ONE) == 0
    output = capsys.readouterr()
    assert upstream.tested == ["4.36.2"] * 2
    assert "4.36.2: affected  [1.5 s]" in output.out
    assert "1 cell: 1 affected" in output.out
    assert output.err == f"harness: {file} is damaged: its release is tested again\n"


@pytest.mark.parametrize("error", [Fault("no network"), UserError("no release of that name")])
def test_a_fault_or_a_missing_release_is_passed_on_if_the_caller_wants_it(
    upstream: Upstream, error: Exception
) -> None:
    upstream.error = error
    failed: list[tuple[int, HarnessError]] = []
    assert list(executor.find_all([RELEASED_RUN], jobs=1, failed=lambda *e: failed.append(e))) == []
    assert failed == [(0, error)]


@pytest.mark.parametrize(
    ("error", "failed"),
    [(Fault("no network"), None), (Inconclusive("it could not be installed"), lambda *_: None)],
)
def test_another_failure_is_an_inconclusive_cell(
    upstream: Upstream, error: Exception, failed: cells.Failed | None
) -> None:
    upstream.error = error
    ((_, failed_cell),) = executor.find_all([RELEASED_RUN], jobs=1, failed=failed)
    assert (failed_cell.status, failed_cell.reason) == (Status.INCONCLUSIVE, str(error))


def test_a_full_disk_ends_a_sweep_with_one_line(
    upstream: Upstream, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(store, "write_whole", full_disk)
    err = refused(capsys, [*SWEEP], code=3)
    assert err.startswith(f"harness: no room on the disk for {cache / 'cells'}")
    assert list((cache / "cells").iterdir()) == []


def test_an_interrupted_sweep_continues_where_it_stopped(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*words: Any) -> tuple[RunResult, Path]:
        if len(upstream.tested) == 3:
            raise KeyboardInterrupt
        return upstream(*words)

    with monkeypatch.context() as patch:
        patch.setattr(cells, "run", interrupted)
        assert main([*SWEEP, "jobs=1"]) == 130
    assert len(upstream.tested) == 3
    assert main([*SWEEP, "jobs=1"]) == 0
    assert len(upstream.tested) == len(set(upstream.tested)) == 5


@pytest.mark.parametrize("timed_out", [False, True])
def test_an_inconclusive_cell_is_stored_unless_it_timed_out(
    upstream: Upstream, capsys: Capture, timed_out: bool
) -> None:
    upstream.outcomes, upstream.timed_out = {"4.37.0": Outcome.INCONCLUSIVE}, timed_out
    assert main([*SWEEP]) == 3
    assert "transformers 4.37.0: inconclusive" in capsys.readouterr().out
    upstream.tested.clear()
    assert main([*SWEEP]) == 3
    assert upstream.tested == (["4.37.0"] if timed_out else [])


def test_a_release_with_another_bug_instead_is_not_affected(
    upstream: Upstream, capsys: Capture
) -> None:
    upstream.outcomes, upstream.another = {"4.36.2": Outcome.INCONCLUSIVE}, "rope_zero_init_v5"
    assert main([*ONE]) == 0
    out = capsys.readouterr().out
    assert "not affected" in out
    assert "rope_zero_init_v5 instead: odd" in out


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Unsupported("no wheels for this Python"), Status.UNSUPPORTED, 0),
        (Inconclusive("no network"), Status.INCONCLUSIVE, 3),
    ],
)
def test_a_release_that_cannot_run_is_reported_with_its_reason_and_not_stored(
    upstream: Upstream, tmp_path: Path, error: Exception, status: Status, code: int
) -> None:
    upstream.error = error
    assert main([*SWEEP, "--json", str(tmp_path / "cells.json")]) == code
    content = json.loads((tmp_path / "cells.json").read_text())
    assert {(cell["status"], cell["reason"]) for cell in content} == {(status, str(error))}
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
        (64, 8, ("lane=cpu",), 32),
    ],
)
def test_as_many_cells_run_at_once_as_cores_or_gpus_have_room_for(
    monkeypatch: pytest.MonkeyPatch, cpus: int, gpus: int, words: tuple[str, ...], at_once: int
) -> None:
    set_gpus(monkeypatch, gpus)
    monkeypatch.setattr(machine, "cores", lambda: cpus)
    assert cells.room(command_line.compose(["scenario=rope_zero_init", *words])) == at_once


def test_two_packages_make_a_grid_and_the_file_contains_every_cell(
    upstream: Upstream, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "cells.json"
    pins = ["pins.transformers=4.37.2,4.38.2", "pins.deepspeed=0.13.3,0.19.8"]
    assert main([*SWEEP[:2], *pins, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in out.partition(r"rs \ deepspeed")[2].splitlines()]
    assert rows[1:3] == ["4.37.2 affected affected", "4.38.2 not affected not affected"]
    content = json.loads(file.read_text())
    assert len(content) == 4
    assert complaints("matrix.json", content) == []


@pytest.mark.parametrize(
    ("words", "message"),
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
        ([*SWEEP[:2], "pins.transformers=9:", "seed=-1"], "seed=-1: choose one from 0"),
        (["bisect", *SWEEP[1:2], "pins.transformers=4.36.2"], "needs one package with a range"),
        (["bisect", *SWEEP[1:], "--apart", "0"], "--apart must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_tests_nothing(
    upstream: Upstream, capsys: Capture, words: list[str], message: str
) -> None:
    assert message in refused(capsys, words)
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


def test_bisect_names_uncertain_releases_between_neighbours(
    upstream: Upstream, capsys: Capture
) -> None:
    upstream.outcomes = {"4.37.2": Outcome.INCONCLUSIVE}
    assert main(["bisect", *SWEEP[1:], "--apart", "1"]) == 0
    assert "(not certain between: 4.37.2)" in capsys.readouterr().out


NO_WHEELS = "transformers=={0} could not be installed for Python 3.11: no wheels of tokenizers=={0}"
NOT_BUILT = "deepspeed==0.13.3 transformers=={0} could not be installed: setup.py of {0} failed"
NO_WHEELS_SHOWN = "unsupported  [not run]  could not be installed for Python 3.11: no wheels of tok"
NOT_BUILT_SHOWN = "inconclusive  [not run]  could not be installed: setup.py of"


def failing(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, text: str, kind: type[HarnessError]
) -> None:
    """Let every release but 4.38.2 fail before it runs."""

    def run(config: RunConfig, *_: object) -> tuple[RunResult, Path]:
        release = config.pins["transformers"]
        if release != "4.38.2":
            raise kind(text.format(release))
        return upstream(config)

    monkeypatch.setattr(cells, "run", run)


@pytest.mark.parametrize("command", ["matrix", "bisect"])
@pytest.mark.parametrize(
    ("text", "kind", "row"),
    [(NO_WHEELS, Unsupported, NO_WHEELS_SHOWN), (NOT_BUILT, Inconclusive, NOT_BUILT_SHOWN)],
    ids=["unsupported", "inconclusive"],
)
def test_releases_that_cannot_be_installed_are_reported_and_not_counted_as_run(
    upstream: Upstream,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    command: str,
    text: str,
    kind: type[HarnessError],
    row: str,
) -> None:
    failing(upstream, monkeypatch, text, kind)
    options = ["--apart", "1"] if command == "bisect" else ["jobs=1"]
    assert main([command, *SWEEP[1:], *options]) in (0, 3)
    out = capsys.readouterr().out
    assert f"transformers 4.36.2: {row}" in out
    assert command == "matrix" or "tried 5 of 5 releases: 1 ran, 4 did not start" in out
