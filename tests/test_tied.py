"""The detector for tied copies, in a real group over gloo; and a recorded run in two acts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from harness.detectors.tied import tied_copies, tied_differences
from harness.spec import Outcome, Verdict
from harness.trial.grade import grade
from harness.trial.records import EXIT_FILE
from tests.group import in_group
from tests.recording import Recording, stored_verdict

NAMES = ["tied_modules.embed.word.weight", "tied_modules.embed.bias"]


def stage(
    group: dist.ProcessGroup | None, weight: float = 1.0, master: float = 1.0, norm: float = 1.0
) -> nn.Module:
    """What a stage of a DeepSpeed pipeline holds of a tied module, with fp32 copies."""
    tied = nn.Module()
    tied.word = nn.Linear(3, 2, bias=False)
    tied.bias = nn.Parameter(torch.zeros(2))
    tied.norm = nn.LayerNorm(2)
    nn.init.constant_(tied.word.weight, weight)
    nn.init.constant_(tied.norm.weight, norm)
    for parameter, value in ((tied.word.weight, master), (tied.bias, 0.0)):
        fragment = torch.full((parameter.numel(),), value)
        vars(parameter)["_hp_mapping"] = SimpleNamespace(hp_fragment=fragment)
    module = nn.Module()
    comm = {"weight_attr": ["word.weight", "bias"], "module": tied, "group": group}
    vars(module)["tied_comms"] = {"embed": comm}
    return module


CASES: dict[str, tuple[Callable[[int, dist.ProcessGroup | None], nn.Module], bool]] = {
    "equal": (lambda rank, group: stage(group), True),
    "drifted": (lambda rank, group: stage(group, weight=1 + rank / 4), False),
    "hidden by a broadcast": (lambda rank, group: stage(group, master=1 + rank / 2), False),
    "drifted master": (lambda rank, group: stage(group, master=1 + rank / 2), True),
    "untied norm": (lambda rank, group: stage(group, norm=1 + rank), True),
    "on one stage": (lambda rank, group: nn.Linear(2, 2), True),
}


def ask(rank: int, folder: Path) -> None:
    """One rank: every case in turn; ranks 0 and 2 hold the copies, the middle one none."""
    group = dist.new_group([0, 2])
    answers = {}
    for name, (build, masters) in CASES.items():
        module = nn.Linear(2, 2) if rank == 1 else build(rank // 2, group)
        found = tied_differences(tied_copies(module, masters))
        answers[name] = [asdict(difference) for difference in found]
    (folder / f"{rank}.json").write_text(json.dumps(answers))


Answers = list[dict[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What each rank found, by case."""
    folder = tmp_path_factory.mktemp("group")
    in_group(3, ask, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(3)]


@pytest.mark.parametrize("case", CASES)
def test_the_ranks_with_a_copy_agree_and_the_other_finds_nothing(
    answers: Answers, case: str
) -> None:
    assert answers[0][case] == answers[2][case]
    assert answers[1][case] == []


@pytest.mark.parametrize("case", ["equal", "untied norm", "on one stage"])
def test_what_is_not_tied_may_differ(answers: Answers, case: str) -> None:
    assert answers[0][case] == []


def test_a_drifted_copy_is_found(answers: Answers) -> None:
    assert answers[0]["drifted"] == [{"name": NAMES[0], "ranks": [1], "greatest": 0.25}]


def test_a_broadcast_hides_a_drift_from_the_weights_but_not_from_the_masters(
    answers: Answers,
) -> None:
    assert answers[0]["hidden by a broadcast"] == []
    found = {"name": NAMES[0] + " (fp32)", "ranks": [1], "greatest": 0.5}
    assert answers[0]["drifted master"] == [found]


def test_old_releases_name_one_attribute() -> None:
    module = stage(None)
    vars(module)["tied_comms"]["embed"]["weight_attr"] = "bias"
    assert [name for name, _, _ in tied_copies(module)] == [NAMES[1]]


@pytest.mark.parametrize("mapping", [None, SimpleNamespace(hp_fragment=torch.ones(4))])
def test_a_partitioned_master_copy_is_refused(mapping: object) -> None:
    module = stage(None)
    vars(vars(module)["tied_comms"]["embed"]["module"].word.weight)["_hp_mapping"] = mapping
    with pytest.raises(ValueError, match=f"no whole fp32 copy of {NAMES[0]}"):
        list(tied_copies(module, masters=True))


# A run in two acts, made with ``run scenario=tied_resume_norm``; made neutral as bf16_clip's was.

RECORDED = Path(__file__).parent / "recorded" / "tied_resume_norm_cpu"
NORM = "tied_modules.embed.word_embeddings.norm.weight"


@pytest.fixture
def resumed(tmp_path: Path) -> Recording:
    """A copy of the recorded run, to tamper with; a trial of it is named like ``buggy/resume``."""
    return Recording(shutil.copytree(RECORDED, tmp_path / "run"))


def test_a_stored_run_in_two_acts_is_graded_as_it_was_when_it_ran() -> None:
    stored = stored_verdict(RECORDED)
    graded = json.loads(json.dumps(grade(RECORDED).to_json()))
    assert graded == stored
    assert graded["verdict"] == "reproduced"


def test_the_buggy_trial_shows_the_figures_of_the_report(resumed: Recording) -> None:
    finding = resumed.trial("buggy").finding
    assert finding is not None
    assert finding.parameters == (NORM,)
    assert finding.ranks == (1,)
    assert "0.99609 before, 1 after, as initialised" in finding.message


def without_exit(run: Recording, place: str) -> None:
    (run.folder / place / EXIT_FILE).unlink()


def without_the_act(run: Recording, place: str) -> None:
    shutil.rmtree(run.folder / place)


def without_a_rank(run: Recording, place: str) -> None:
    run.rank_file(place).unlink()


def without_its_end(run: Recording, place: str) -> None:
    file = run.rank_file(place)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def with_a_crash(run: Recording, place: str) -> None:
    with run.exit(place) as exit_:
        exit_["code"] = 1


def with_another_release(run: Recording, place: str) -> None:
    with run.record(place, "upstream", 1) as proof:
        proof["modules"]["deepspeed"]["version"] = "0.19.7"


@pytest.mark.parametrize("place", ["buggy/train", "buggy/resume", "fixed/train", "fixed/resume"])
@pytest.mark.parametrize(
    "tamper",
    [
        without_exit, without_the_act, without_a_rank, without_its_end, with_a_crash,
        with_another_release,
    ],
)  # fmt: skip
def test_an_act_with_this_is_inconclusive(
    tamper: Callable[[Recording, str], None], place: str, resumed: Recording
) -> None:
    tamper(resumed, place)
    assert resumed.grade().verdict is Verdict.INCONCLUSIVE
    trial = resumed.trial(place.partition("/")[0])
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert trial.finding is None


def test_a_change_that_is_no_reset_is_not_the_documented_symptom(resumed: Recording) -> None:
    with resumed.record("buggy/resume", "loaded", 1) as loaded:
        loaded["changed"][0]["reset"] = False
    trial = resumed.trial("buggy")
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "not the documented symptom" in trial.reason


def test_a_change_on_another_rank_too_is_not_the_documented_symptom(resumed: Recording) -> None:
    with resumed.record("buggy/resume", "loaded", 1) as last:
        changed = last["changed"]
    with resumed.record("buggy/resume", "loaded", 0) as first:
        first["changed"] = changed
    assert resumed.trial("buggy").outcome is Outcome.INCONCLUSIVE


def test_nothing_but_initial_values_saved_is_not_exercised(resumed: Recording) -> None:
    with resumed.record("fixed/resume", "loaded", 1) as loaded:
        loaded["trained"].remove(NORM)
    trial = resumed.trial("fixed")
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "not exercised" in trial.reason


def test_a_master_copy_that_changed_is_seen(resumed: Recording) -> None:
    with resumed.record("buggy/resume", "loaded", 1) as last:
        change = last["changed"][0] | {"name": "2.norm.bias (fp32)", "reset": False}
    with resumed.record("fixed/resume", "loaded", 1) as last:
        last["changed"] = [change]
    assert resumed.trial("fixed").outcome is Outcome.INCONCLUSIVE
