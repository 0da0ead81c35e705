"""The scripts for maintainers: each shows its bug on a real release, with upstream alone."""

from __future__ import annotations

import ast
import platform
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from harness.bugs import catalog, pins, result_file
from harness.bugs.api.spec import BUGGY, FIXED, RELEASED, Lane
from harness.bugs.periods import alive
from harness.bugs.pins import TORCH
from harness.publish import report_scripts
from harness.releases.overlay import Overlay
from harness.system import machine
from tests.overlays import DAYS, lent, lent_release

UNKNOWN = [name for name in catalog.sound() if not catalog.scenario(name).known_upstream]
PORT = re.compile(r"\b29[0-9]{3}\b")


def script(name: str) -> Path:
    return catalog.folder(name) / catalog.REPORT_SCRIPT


ALL = list(catalog.names())


def edited_or_another_release(name: str) -> bool:
    """Whether ``fixed`` differs from ``buggy`` in its code, and not only in its parameters."""
    scenario = catalog.scenario(name)
    fixed, buggy = ({**scenario.pins, **scenario.pins_of(each)} for each in (FIXED, BUGGY))
    return scenario.variant(FIXED).defects != scenario.variant(BUGGY).defects or fixed != buggy


def test_no_script_needs_anything_of_this_project() -> None:
    for name in ALL:
        for node in ast.walk(ast.parse(script(name).read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            packages = {each.partition(".")[0] for each in names}
            assert packages.isdisjoint({"harness", "scenarios"}), name


def test_each_script_has_a_port_of_its_own() -> None:
    """Tests run several at once."""
    ports = Counter(port for name in ALL for port in set(PORT.findall(script(name).read_text())))
    assert [port for port, scripts in ports.items() if scripts > 1] == []


def test_a_text_for_maintainers_has_all_parts() -> None:
    parts = ("What happens", "What should happen", "Versions", "Cause", "Proposal", "Script")
    for name in UNKNOWN:
        text = script(name).with_suffix(".md").read_text()
        assert [part for part in parts if f"**{part}" not in text] == [], name


def of_a_day(names: Iterable[str]) -> list[ParameterSet]:
    """Each bug has its day, so that both tests of it use one overlay."""
    return [pytest.param(name, marks=pytest.mark.by_day(DAYS, ALL.index(name))) for name in names]


@pytest.mark.scenario
@pytest.mark.parametrize("name", of_a_day(ALL))
def test_a_script_shows_the_bug_of_a_buggy_release(name: str, tmp_path: Path) -> None:
    if newest := newest_affected(name):
        with lent_release(name, newest) as overlay:
            released = {catalog.scenario(name).subject: newest}
            check(name, overlay, released, tmp_path, wrong=True)
    else:
        with lent(name, BUGGY) as overlays:
            check(name, overlays[BUGGY], of_variant(name, BUGGY), tmp_path, wrong=True)


def newest_affected(name: str) -> str:
    """The newest release, if it has the bug with the parameters of ``buggy`` and this Python can
    install it; otherwise "". Of torch, only the scenario's own release is available."""
    scenario, bug, python = catalog.scenario(name), alive(name), pins.here()[0]
    if not bug or scenario.subject == TORCH:
        return ""
    if bug.variant != RELEASED:
        params = [scenario.variant(each).params for each in (bug.variant, BUGGY)]
        if params[0] != params[1]:
            return ""
    installed = (
        cell.pins[scenario.subject]
        for cell in result_file.statuses(name)
        if cell.python.startswith(f"{python}.")
    )
    return bug.release if bug.release in installed else ""


@pytest.mark.scenario
@pytest.mark.parametrize("name", of_a_day(filter(edited_or_another_release, ALL)))
def test_a_script_finds_nothing_in_fixed(name: str, tmp_path: Path) -> None:
    with lent(name, FIXED) as overlays:
        check(name, overlays[FIXED], of_variant(name, FIXED), tmp_path, wrong=False)


def of_variant(name: str, variant: str) -> dict[str, str]:
    return dict(catalog.scenario(name).pins_of(variant))


def check(
    name: str, overlay: Overlay, pins_of_user: dict[str, str], folder: Path, *, wrong: bool
) -> None:
    """Run a script. If there is a text for maintainers, it must quote the script's last line."""
    scenario = catalog.scenario(name)
    lane = Lane.CPU if Lane.CPU in scenario.lanes else Lane.GPU
    if lane is Lane.GPU and not machine.gpus():
        pytest.skip("this bug needs a GPU")
    releases = pins.complete(scenario, pins_of_user)
    if why := pins.why_not_imported(releases, platform.python_version()):
        pytest.skip(why)
    process = report_scripts.run(name, overlay.site, releases, folder)
    expected = report_scripts.WRONG if wrong else report_scripts.RIGHT
    assert process.returncode == expected, process.stdout + process.stderr
    last_line = process.stdout.splitlines()[-1]
    assert last_line.startswith("WRONG" if wrong else "right")
    if not scenario.known_upstream:
        assert f"\n{last_line}\n" in script(name).with_suffix(".md").read_text()
