"""Checking an environment: by a run, by what is recorded, or not at all."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from harness import catalog, config
from harness.__main__ import main
from harness.commands import check
from harness.errors import Inconclusive, Unsupported, UserError
from harness.run_config import RunConfig
from harness.spec import RELEASED
from harness.sweep import affected
from harness.upstream import overlay, requirements
from tests.made_up import YES, Upstream
from tests.overlays import lent

Capture = pytest.CaptureFixture[str]
Recording = Callable[..., None]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    installed: dict[str, str] = {}

    def version(name: str) -> str:
        if name in installed:
            return installed[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    return installed


def asked(scenario: str) -> RunConfig:
    return config.compose([f"scenario={scenario}", f"variant={RELEASED}"])


def test_what_is_not_installed_cannot_be_affected(environment: dict[str, str]) -> None:
    found = check.checked(asked("bf16_clip"))
    assert (found.status, found.why) == ("not affected", "deepspeed is not installed")


def test_what_cannot_be_run_is_answered_from_the_record(
    environment: dict[str, str], record: Recording
) -> None:
    environment["transformers"] = "4.37.0"
    found = check.checked(asked("rope_zero_init"))
    assert found.status == "unknown"
    assert "the run needs deepspeed, which is not installed" in found.why
    record(v4_36_2=YES, v4_37_2=YES)
    found = check.checked(asked("rope_zero_init"))
    assert (found.status, found.how) == ("affected", "recorded")
    assert "as 4.36.2 and 4.37.2 were; not run here" in found.why


def test_a_release_that_the_scenario_is_not_about_is_not_affected(
    environment: dict[str, str],
) -> None:
    environment.update(transformers="4.36.2", deepspeed="0.13.3")
    found = check.checked(asked("rope_zero_init_v5"))
    assert found.status == "not affected"
    assert "this is about transformers>=5" in found.why


def test_requirements_are_asked_on_overlays(upstream: Upstream) -> None:
    found = check.checked(asked("rope_zero_init"), {"transformers": "4.36.2"})
    assert (found.status, found.how) == ("affected", "ran")
    found = check.checked(asked("rope_zero_init"), {"transformers": "4.38.2"})
    assert found.status == "not affected"
    assert upstream.tested == ["4.36.2", "4.38.2"]
    found = check.checked(asked("bf16_clip"), {"transformers": "4.38.2"})
    assert found.why == "deepspeed is not required"


def test_the_exit_code_says_affected_and_names_trigger_and_remedy(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("transformers\n")
    words = ["check", "scenario=rope_zero_init", "-r", str(file)]
    monkeypatch.setattr(requirements, "required", lambda *_: {"transformers": "4.36.2"})
    assert main(words) == 1
    out = capsys.readouterr().out
    told = catalog.scenario("rope_zero_init")
    assert f"only with {told.trigger}" in out
    assert f"remedy: {told.remedy}" in out
    monkeypatch.setattr(requirements, "required", lambda *_: {"transformers": "4.38.2"})
    assert main(words) == 0
    upstream.error = Inconclusive("no network")
    monkeypatch.setattr(requirements, "required", lambda *_: {"transformers": "4.37.2"})
    monkeypatch.setattr(affected, "of", lambda name: [])
    assert main(words) == 0
    assert main([*words, "--strict"]) == 3


def test_a_check_leaves_no_runs_where_the_user_stands_unless_it_is_told_where(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_RUNS", raising=False)

    def note(each: RunConfig, *_: object) -> check.Checked:
        asked.append(each.runs)
        each.runs.mkdir(exist_ok=True)
        return check.Checked(each.scenario, "not affected", "ran", "")

    monkeypatch.setattr(check, "checked", note)
    assert check.check(["scenario=bf16_clip"]) == 0
    assert not asked[0].exists()
    assert check.check(["scenario=bf16_clip", f"runs={tmp_path / 'mine'}"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-r", "nowhere.txt"], "no requirements file nowhere.txt"),
        (["pins.deepspeed=0.1"], "leave pins.deepspeed=0.1 out"),
        (["scenario=rope_zero"], "did you mean rope_zero_init?"),
    ],
)
def test_a_mistake_in_checking_is_one_line(words: list[str], told: str, capsys: Capture) -> None:
    assert main(["check", *words]) == 2
    assert told in capsys.readouterr().err


def test_requirements_without_any_upstream_are_a_mistake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("numpy\n")
    monkeypatch.setattr(requirements, "required", lambda *_: {"numpy": "2.0"})
    with pytest.raises(UserError, match=f"names none of {', '.join(catalog.upstreams())}"):
        check.check(["scenario=rope_zero_init"], file)


@pytest.mark.parametrize(("asked_for", "said"), [("2.5.1", True), (None, False)])
def test_another_torch_than_the_one_that_runs_is_said(
    upstream: Upstream,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: Capture,
    asked_for: str | None,
    said: bool,
) -> None:
    file = tmp_path / "requirements.txt"
    file.touch()
    here = metadata.version("torch").partition("+")[0]
    wanted = {"transformers": "4.38.2", "torch": asked_for or here}
    monkeypatch.setattr(requirements, "required", lambda *_: wanted)
    assert check.check(["scenario=rope_zero_init"], file) == 0
    assert ("selects torch 2.5.1, but thi" in capsys.readouterr().out) is said


def test_only_what_lies_in_the_environment_itself_counts_as_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = overlay.installed(["packaging", "pytest"])
    assert (found.site / "packaging" / "__init__.py").is_file()
    with pytest.raises(Unsupported, match="not-there is not installed"):
        overlay.installed(["packaging", "not-there"])
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(Unsupported, match="packaging is installed in"):
        overlay.installed(["packaging"])


@pytest.mark.launch
def test_what_is_installed_is_run_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An overlay of accelerate stands for the environment that has it installed."""
    with lent("sampler_shards", "buggy") as overlays:
        site = str(overlays["buggy"].site)
        monkeypatch.syspath_prepend(site)
        monkeypatch.setattr(sysconfig, "get_path", lambda _: site)
        monkeypatch.setattr(overlay, "borrowed", None)  # nothing but the environment is to run
        words = ["scenario=sampler_shards", f"variant={RELEASED}", "launch=cpu"]
        found = check.checked(config.compose([*words, f"runs={tmp_path}"]))
    assert (found.status, found.how) == ("affected", "ran"), found.why
    assert found.why.startswith("accelerate 0.29.3: ")
