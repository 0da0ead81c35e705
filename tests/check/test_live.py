"""The status of each bug in an environment, from runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.bugs.pins import Distribution, Interpreter
from harness.check import live
from harness.check.bug_status import BugStatus, Checked, recorded
from harness.check.environment import Environment, of_this_interpreter
from harness.check.installed import Exact
from harness.releases import overlay
from harness.system.errors import Inconclusive, Unsupported
from harness.system.terminal import Progress, terminal
from tests.check.test_bug_status import environment
from tests.check.test_check import Capture, file
from tests.made_up import NO, YES, Upstream
from tests.overlays import lent

pytestmark = pytest.mark.usefixtures("offline")

Recording = Callable[..., None]
ROPE = "rope_zero_init"


def run_status(name: str, installed: Environment, *words: str) -> Checked:
    """The status after a run."""
    bugs, words = recorded([name], installed), ("lane=cpu", *words)
    return live.statuses(bugs, installed, words, Progress(terminal()))[name]


def test_a_run_without_a_status_leaves_the_recorded_one(
    upstream: Upstream, record: Recording
) -> None:
    record(v4_36_2=YES, v4_37_2=NO)
    upstream.error = Inconclusive("no network")
    bug = run_status(
        ROPE, environment({"transformers": "4.36.2", "deepspeed": "0.13.3"}, complete=False)
    )
    assert (bug.status, bug.how) == (BugStatus.AFFECTED, "tested")
    assert bug.why.endswith("the run gave no certain status: no network")


def test_only_unknown_bugs_are_run_if_that_is_wanted(
    upstream: Upstream, record: Recording, tmp_path: Path, capsys: Capture
) -> None:
    record(v4_36_2=YES, v4_37_2=NO)
    words = ["check", f"scenario={ROPE}", "lane=cpu", "--run", "--unknown", "-r"]
    assert main([*words, file(tmp_path, "transformers==4.36.2", "deepspeed==0.13.3")]) == 1
    assert upstream.tested == []
    assert main([*words, file(tmp_path, "transformers==4.37.0", "deepspeed==0.13.3")]) == 1
    assert upstream.tested == ["4.37.0"]
    assert "4.37.0" in capsys.readouterr().out


def test_only_packages_in_the_environment_itself_count_as_installed(tmp_path: Path) -> None:
    interpreter = of_this_interpreter(["packaging", "pytest", "not-there"]).interpreter
    assert interpreter is not None
    assert overlay.installed(interpreter, ["packaging"]).site == Path(interpreter.site)
    with pytest.raises(Unsupported, match="not-there is not installed"):
        overlay.installed(interpreter, ["packaging", "not-there"])
    elsewhere = {"packaging": Distribution("1.0", str(tmp_path))}
    with pytest.raises(Unsupported, match="packaging is installed in"):
        overlay.installed(Interpreter("python", "3.11", interpreter.site, elsewhere), ["packaging"])


def test_an_interpreter_without_torch_cannot_run_anything() -> None:
    packages = {"deepspeed": Exact("0.13.2")}
    without = Environment(packages, "/p", True, Interpreter("/p", "3.11.7", "/site", {}))
    with pytest.raises(Unsupported, match="/p has no torch, which --run needs"):
        run_status("clip_max_for_min", without)


@pytest.mark.launch
def test_installed_packages_are_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay of accelerate stands for the environment that has it installed."""
    monkeypatch.delenv("UV_OFFLINE")  # the overlay may have to be built
    with lent("sampler_shards", "buggy") as overlays:
        site = str(overlays["buggy"].site)
        stack = of_this_interpreter([])
        assert stack.interpreter is not None
        packages = {**stack.interpreter.packages, "accelerate": Distribution("0.29.3", site)}
        interpreter = replace(stack.interpreter, site=site, packages=packages)
        monkeypatch.setattr(overlay, "borrow", None)  # nothing but the environment is to run
        installed = {**stack.packages, "accelerate": Exact("0.29.3")}
        bug = run_status("sampler_shards", Environment(installed, "here", True, interpreter))
    assert (bug.status, bug.how) == (BugStatus.AFFECTED, "ran"), bug.why
