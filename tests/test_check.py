"""Checking an environment: by a run, by recorded results, or not at all."""

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


def checked(scenario: str, required: dict[str, str] | None = None) -> check.Checked:
    return check.checked(config.compose([f"scenario={scenario}", f"variant={RELEASED}"]), required)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "requirements.txt"
    file.touch()
    return file


def test_a_package_that_is_not_installed_or_out_of_scope_is_not_affected(
    environment: dict[str, str],
) -> None:
    found = checked("bf16_clip")
    assert (found.status, found.why) == ("not affected", "deepspeed is not installed")
    environment.update(transformers="4.36.2", deepspeed="0.13.3")
    found = checked("rope_zero_init_v5")
    assert found.status == "not affected"
    assert "this is about transformers>=5" in found.why


def test_recorded_results_are_used_if_the_scenario_cannot_run(
    environment: dict[str, str], record: Recording
) -> None:
    environment["transformers"] = "4.37.0"
    found = checked("rope_zero_init")
    assert found.status == "unknown"
    assert "the run needs deepspeed, which is not installed" in found.why
    record(v4_36_2=YES, v4_37_2=YES)
    found = checked("rope_zero_init")
    assert (found.status, found.how) == ("affected", "recorded")
    assert "as 4.36.2 and 4.37.2 were; not run here" in found.why


def test_requirements_are_tested_on_overlays(upstream: Upstream) -> None:
    found = checked("rope_zero_init", {"transformers": "4.36.2"})
    assert (found.status, found.how) == ("affected", "ran")
    assert checked("rope_zero_init", {"transformers": "4.38.2"}).status == "not affected"
    assert upstream.tested == ["4.36.2", "4.38.2"]
    assert checked("bf16_clip", {"transformers": "4.38.2"}).why == "deepspeed is not required"


def test_the_exit_code_says_affected_and_the_report_names_trigger_and_remedy(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, file: Path, capsys: Capture
) -> None:
    words = ["check", "scenario=rope_zero_init", "-r", str(file)]

    def exit_code(release: str, *options: str) -> int:
        monkeypatch.setattr(requirements, "required", lambda *_: {"transformers": release})
        return main([*words, *options])

    assert exit_code("4.36.2") == 1
    out, scenario = capsys.readouterr().out, catalog.scenario("rope_zero_init")
    assert f"only with {scenario.trigger}" in out
    assert f"remedy: {scenario.remedy}" in out
    assert exit_code("4.38.2") == 0
    upstream.error = Inconclusive("no network")
    monkeypatch.setattr(affected, "of", lambda name: [])
    assert exit_code("4.37.2") == 0
    assert exit_code("4.37.2", "--strict") == 3


def test_a_check_leaves_no_runs_in_the_working_directory_unless_runs_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_RUNS", raising=False)

    def note(each: RunConfig, *_: object) -> check.Checked:
        folders.append(each.runs)
        each.runs.mkdir(exist_ok=True)
        return check.Checked(each.scenario, "not affected", "ran", "")

    monkeypatch.setattr(check, "checked", note)
    assert check.check(["scenario=bf16_clip"]) == 0
    assert not folders[0].exists()
    assert check.check(["scenario=bf16_clip", f"runs={tmp_path / 'mine'}"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-r", "nowhere.txt"], "no requirements file nowhere.txt"),
        (["pins.deepspeed=0.1"], "leave pins.deepspeed=0.1 out"),
        (["scenario=rope_zero"], "did you mean rope_zero_init?"),
    ],
)
def test_a_mistake_is_reported(words: list[str], message: str, capsys: Capture) -> None:
    assert main(["check", *words]) == 2
    assert message in capsys.readouterr().err


def test_an_environment_without_any_upstream_is_a_mistake_and_not_an_all_clear(
    environment: dict[str, str], capsys: Capture
) -> None:
    assert main(["check", "scenario=sampler_shards"]) == 2
    assert "transformers, torch is installed in " in (err := capsys.readouterr().err)
    assert err.endswith("-r FILE\n")
    environment["torch"] = "2.13.0"
    assert main(["check", "scenario=sampler_shards"]) == 0


def test_requirements_without_any_upstream_are_a_mistake(file: Path) -> None:
    file.write_text("numpy\n")
    with pytest.raises(UserError, match=f"names none of {', '.join(catalog.upstreams())}"):
        check.check(["scenario=rope_zero_init"], file)


@pytest.mark.parametrize("torch", ["2.5.1", None])
def test_another_torch_than_the_one_that_runs_is_reported(
    upstream: Upstream,
    monkeypatch: pytest.MonkeyPatch,
    file: Path,
    capsys: Capture,
    torch: str | None,
) -> None:
    here = metadata.version("torch").partition("+")[0]
    wanted = {"transformers": "4.38.2", "torch": torch or here}
    monkeypatch.setattr(requirements, "required", lambda *_: wanted)
    assert check.check(["scenario=rope_zero_init"], file) == 0
    assert ("selects torch 2.5.1, but thi" in capsys.readouterr().out) is bool(torch)


def test_only_packages_in_the_environment_itself_count_as_installed(
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
def test_installed_packages_are_run_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
