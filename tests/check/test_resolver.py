"""What a resolver makes of requirements, and what is not looked up."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest
from packaging.tags import platform_tags

from harness.check import environment, problem, resolver, solver
from harness.check.installed import Exact
from harness.releases import uv
from harness.system.errors import UserError
from tests.check.published import publish, published, releases, stack_of, starts
from tests.index import Handler, no_network, page, served
from tests.index import file as file_of

__all__ = ["no_network", "published", "served", "starts"]


@pytest.mark.parametrize(
    ("text", "day", "expected"),
    [
        ("up", "", {"up": "2.0", "down": "2.5"}),
        ("up", "2024-03-01", {"up": "1.0", "down": "1.5"}),
        ("up\ndown", "", {"up": "2.0", "down": "2.5"}),
        ("up\nsource==1.0\nnowhere", "", {"up": "2.0", "down": "2.5"}),
        ("up==1.0", "", {"up": "1.0", "down": "1.5"}),
    ],
)
def test_releases_fit_together_on_a_day(
    published: type[Handler], tmp_path: Path, text: str, day: str, expected: dict[str, str]
) -> None:
    """Each package alone would be the newest: down 3.0, which up forbids."""
    stack = stack_of(tmp_path, f"{text}\n", day=day)
    assert {name: package.version for name, package in stack.packages.items()} == expected
    assert ("as no index has their wheels: nowhere, source" in " ".join(stack.notes)) == (
        "source" in text
    )


@pytest.mark.parametrize(
    ("day", "up"),
    [
        ("2024-03-01", "1.0"),
        ("'2024-06-01'", "2.0"),
        ("'2024-06-01T00:00:00Z'", "1.0"),
        ("2024-06-01T00:00:00Z", "1.0"),
        ("'2024-06-01T00:00:01+00:00'", "2.0"),
        ("'1 week'", "2.0"),
        ("'P5000W'", ""),
    ],
)
def test_the_day_of_uvs_setting_counts(
    published: type[Handler], tmp_path: Path, day: str, up: str
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(f"[project]\ndependencies = ['up']\n[tool.uv]\nexclude-newer = {day}\n")
    assert releases(environment.of_files([str(file)], ["up"])) == {"up": up}
    assert releases(environment.of_files([str(file)], ["up"], "2024-12-01")) == {"up": "2.0"}


def test_of_requirements_that_contradict_each_other_the_files_own_count(
    published: type[Handler], tmp_path: Path
) -> None:
    stack = stack_of(tmp_path, "up==2.0\ndown>=3\n")
    assert releases(stack) == {"up": "2.0", "down": "3.0"}
    (note,) = stack.notes
    assert note.startswith("these requirements contradict each other: down>=3 and up==2.0 (")
    assert "up==2.0 depends on down<3" in note


@pytest.mark.parametrize("text", ["up==3.0\ndown", "up==3.0"])
def test_a_release_that_only_another_package_needs_is_a_contradiction(
    published: type[Handler], tmp_path: Path, text: str
) -> None:
    """The index has wheels of down, so nobody may say that it has none."""
    publish(published, "up", "3.0", "down==7", day="2024-08-01")
    stack = stack_of(tmp_path, f"{text}\n")
    assert "no index has their wheels" not in " ".join(stack.notes)
    assert stack.notes[0] == "not known: the releases of down"
    assert stack.packages["down"].version == ""
    assert "up==3.0 depends on down==7" in stack.packages["down"].origin


def of_another_python(served: type[Handler], name: str) -> None:
    """Publish a package that has wheels, though none for this Python."""
    served.pages[name] = page(file_of(f"{name}-1.0-cp38-cp38-win32.whl", "2023-01-01T00:00:00"))
    served.pages[name] |= {"name": name}


@pytest.mark.parametrize(
    "lines",
    [
        "abi",
        "abi==1.0",
        "abi[extra]==1.0",
        "nowhere",
        "nowhere==2.0\nsource==1.0\nabi[extra]\nelsewhere",
        "other>9",
        "other>=9,<10",
        "mixed==1.0\nmixed==2.0",
        "mixed>=2\nmixed<1",
        "young==1.0",
        "young",
    ],
)
def test_what_cannot_be_resolved_is_left_out_alone(
    published: type[Handler], tmp_path: Path, lines: str
) -> None:
    """oat pins vllm, which needs torch 2.6.0. A package without a wheel had it judged with torch
    2.15.0: all packages without results were left out together."""
    of_another_python(published, "abi")
    publish(published, "tool", "1.0", "down<2", day="2024-01-01")
    for version in ("1.0", "2.0"):
        publish(published, "mixed", version, day="2024-01-01")
    publish(published, "other", "1.0", day="2024-01-01")
    publish(published, "young", "1.0", day="2024-01-01")
    published.pages["young"]["files"][0]["requires-python"] = ">=3.99"
    stack = stack_of(tmp_path, f"tool==1.0\nup\n{lines}\n")
    assert stack.packages["down"].version == "1.5", stack.notes
    assert all("fit together" not in note for note in stack.notes)
    for line in lines.splitlines():
        name = re.split(r"[\[=<>]", line)[0]
        assert any(name in note for note in stack.notes)


def test_uv_is_started_three_times_at_most(
    published: type[Handler], starts: list[str], tmp_path: Path
) -> None:
    """It was started once for each package without a wheel, and for each contradiction."""
    for n in range(6):
        published.pages[f"source{n}"] = page(file_of(f"source{n}-1.0.tar.gz"))
        publish(published, f"tool{n}", "1.0", f"source{n}", f"a{n}<2", day="2024-01-01")
        publish(published, f"a{n}", "3.0", day="2024-01-01")
    lines = [f"tool{n}==1.0\na{n}==3.0" for n in range(6)]
    stack = stack_of(
        tmp_path, "\n".join(["up==1.0", "source", "nowhere", *lines]), "up", "down", "a0"
    )
    assert releases(stack) == {"up": "1.0", "down": "1.5", "a0": "3.0"}
    assert len(starts) <= 3


def test_releases_are_chosen_for_the_python_that_has_the_wheels(
    published: type[Handler], tmp_path: Path
) -> None:
    """PixArt-sigma pins xformers 0.0.19, which needs torch 2.0.0 and has no wheel for 3.11: torch
    was 2.15.0."""
    minor = int(platform.python_version_tuple()[1]) - 1
    tag = f"cp3{minor}"
    publish(published, "old", "1.0", "down<2", day="2024-01-01")
    metadata = published.pages.pop("old/old-1.0-py3-none-any.whl.metadata")
    wheel = f"old-1.0-{tag}-{tag}-{next(platform_tags())}.whl"
    published.pages["old"]["files"][0] |= {"filename": wheel, "url": wheel}
    published.pages[f"old/{wheel}.metadata"] = metadata
    stack = stack_of(tmp_path, "old==1.0\nup\nsource==1.0\nnowhere\n")
    assert stack.packages["down"].version == "1.5", stack.notes
    assert stack.notes == (
        "what these need was not looked up, as no index has their wheels: nowhere, source",
        f"releases for Python 3.{minor} were chosen, as old has no others",
    )
    publish(published, "new", "1.0", day="2024-01-01")
    published.pages["new"]["files"][0]["requires-python"] = f">=3.{minor + 1}"
    assert stack.fits("old", "1.0")
    assert not stack.fits("new", "1.0")
    assert (
        "no index has their wheels: old" in stack_of(tmp_path, "old==1.0\nup\nnew\n", "up").notes[0]
    )


def test_instead_of_a_development_version_that_no_index_has_its_release_decides(
    published: type[Handler], tmp_path: Path
) -> None:
    publish(published, "tool", "1.0", "down<2", day="2024-01-01")
    publish(published, "dev", "1.0.dev1", "down<2", day="2024-01-01")
    for text in ("tool==1.0.dev5\ndown", "dev==1.0.dev1\ndown", "up==1.0.dev20240101+cu121\ndown"):
        stack = stack_of(tmp_path, f"{text}\n")
        assert stack.packages["down"].version == "1.5", stack.notes
        assert stack.notes == ()
    assert stack.packages["up"].version == "1.0.dev20240101"
    stack = stack_of(tmp_path, "source==1.0\ntool==1.0.dev5\ndown\n")
    assert stack.packages["down"].version == "1.5", stack.notes
    assert "tool" not in " ".join(stack.notes)
    publish(published, "other", "1.0", "tool>=2", day="2024-01-01")
    stack = stack_of(tmp_path, "other==1.0\ntool==1.0.dev5\ndown\n")
    assert stack.packages["down"].version == "1.5", stack.notes
    assert not any("no such release" in note for note in stack.notes)


def test_a_requirement_that_contradicts_itself_is_said_with_its_lines(
    published: type[Handler], tmp_path: Path
) -> None:
    """LLaVA-NeXT has pip==23.3.1 and pip==24.0: the note named nine other packages."""
    for version in ("1.0", "2.0"):
        publish(published, "pip", version, day="2024-01-01")
    file = tmp_path / "requirements.txt"
    stack = stack_of(tmp_path, "pip==1.0\nup\npip==2.0\n")
    assert releases(stack) == {"up": "2.0", "down": "2.5"}
    (note,) = stack.notes
    assert note == (
        f"left out, as its requirements contradict each other: pip==1.0 ({file}, line 1) and "
        f"pip==2.0 ({file}, line 3)"
    )


def test_several_contradictions_are_said_each_with_its_requirements(
    published: type[Handler], tmp_path: Path
) -> None:
    for n in "ab":
        publish(published, f"tool{n}", "1.0", f"{n}<2", day="2024-01-01")
        publish(published, n, "1.0", day="2024-01-01")
        publish(published, n, "3.0", day="2024-01-01")
    stack = stack_of(
        tmp_path, "toola==1.0\ntoolb==1.0\na==3.0\nb==3.0\nup==1.0\n", "up", "down", "a"
    )
    assert releases(stack) == {"a": "3.0", "up": "1.0", "down": "1.5"}
    text = " ".join(stack.notes)
    assert "a==3.0 and toola==1.0 (" in text
    assert "b==3.0 and toolb==1.0 (" in text


def test_a_package_may_take_part_in_two_contradictions_at_once(
    published: type[Handler], tmp_path: Path
) -> None:
    """vllm 0.8.4 beside torch 2.5.1: the walk ended in a KeyError."""
    for version in ("1.0", "2.0"):
        publish(published, "tool", version, "middle", day="2024-01-01")
        publish(published, "middle", version, "down<2", "up<2", day="2024-01-01")
    stack = stack_of(tmp_path, "tool\ndown==2.5\nup==2.0\n")
    assert releases(stack) == {"up": "2.0", "down": "2.5"}
    assert "these requirements contradict each other" in " ".join(stack.notes)


def test_what_two_packages_need_in_different_releases_is_unknown(
    published: type[Handler], tmp_path: Path
) -> None:
    publish(published, "old", "1.0", "down<2", day="2024-01-01")
    publish(published, "new", "1.0", "down>=3", day="2024-01-01")
    stack = stack_of(tmp_path, "old==1.0\nnew==1.0\nup\n")
    assert stack.notes[0] == "not known: the releases of down"
    assert "new==1.0 and old==1.0" in stack.notes[1]
    assert stack.packages["down"].version == ""
    assert stack.packages["up"].version


@pytest.mark.parametrize("label", ["cu121", "cpu", "rocm6.0", "xpu"])
@pytest.mark.parametrize("name", ["up", "tool"])
def test_a_build_counts_as_its_release(
    published: type[Handler], tmp_path: Path, label: str, name: str
) -> None:
    """``torchvision==0.16.0+cu121`` was left out, so torch was the newest."""
    publish(published, "tool", "1.0", "down<2", day="2024-01-01")
    stack = stack_of(
        tmp_path,
        f"--extra-index-url http://127.0.0.1:9/whl/{label}\n{name}==1.0+{label}\ndown\n",
        "up",
        "down",
    )
    assert stack.packages["down"].version == "1.5"
    assert name == "tool" or stack.packages["up"] == Exact("1.0")
    assert stack.notes == ()


@pytest.mark.usefixtures("no_network")
def test_without_a_network_the_newest_tested_releases_are_taken(tmp_path: Path) -> None:
    stack = stack_of(tmp_path, "accelerate<1.15\n", "accelerate")
    assert stack.packages["accelerate"].version == "1.14.0"
    assert stack.notes[0] == "not known: the releases of torch"
    assert "the package index does not respond" in stack.notes[1]
    assert "the newest tested release is taken" in stack.notes[2]
    assert "accelerate needs it" in stack.packages["torch"].origin


@pytest.mark.usefixtures("no_network")
def test_without_a_network_a_range_above_the_tested_releases_is_no_mistake(tmp_path: Path) -> None:
    stack = stack_of(tmp_path, "accelerate>=99\n", "accelerate")
    assert stack.packages["accelerate"].version == ""
    assert "the package index does not respond" in stack.packages["accelerate"].origin


def test_a_project_for_other_pythons_is_resolved_for_the_oldest_of_them(tmp_path: Path) -> None:
    assert problem.other_python(">=3.99") == ""
    assert problem.other_python(">=3.8") == ""
    assert problem.other_python("<3.9,>=3.7") == "3.7"


def test_an_override_replaces_what_other_packages_need(
    published: type[Handler], tmp_path: Path
) -> None:
    """fish-speech: two of its packages need releases of protobuf that contradict each other."""
    file = tmp_path / "pyproject.toml"
    text = (
        "[project]\ndependencies = ['up==2.0']\n[tool.uv]\noverride-dependencies = ['down==%s']\n"
    )
    for version in ("1.5", "3.0"):
        file.write_text(text % version)
        stack = environment.of_files([str(file)], ["up", "down"])
        assert stack.packages["down"].version == version, stack.notes


@pytest.mark.parametrize(
    ("line", "day", "note"),
    [
        ("up==9.9.9.9", "", "there is no such release, "),
        ("source==9.9", "", "there is no such release, "),
        ("up==2.0", "2024-03-01", "there was no such release on 2024-03-01, "),
        ("up>=1", "1990-01-01", "there was no such release on 1990-01-01, "),
        (
            "source==1.0",
            "2024-01-01",
            "what these need was not looked up, as no index has their wheels",
        ),
        ("up==1.0+mine", "", "what these need was not looked up, as no index has their wheels"),
    ],
)
def test_a_release_that_does_not_exist_is_said(
    published: type[Handler], tmp_path: Path, line: str, day: str, note: str
) -> None:
    (first_note, *_) = stack_of(tmp_path, f"{line}\ndown\n", day=day).notes
    assert first_note.startswith(note)
    assert re.split("[=>]", line)[0] in first_note


def test_before_the_first_release_a_package_is_unknown(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to be the newest tested release."""
    monkeypatch.setattr(resolver, "tested_releases", lambda _: ("9.0",))
    file = tmp_path / "requirements.txt"
    up = stack_of(tmp_path, "up>=1\n", "up", day="1990-01-01").packages["up"]
    assert up.version == ""
    assert up.origin == "the index has no release of it for this Python until 1990-01-01"
    file.write_text("up>=2\n")
    with pytest.raises(UserError, match=r"no release until 2024-03-01 is up>=2 .*from 1\.0"):
        environment.of_files([str(file)], ["up"], "2024-03-01")


def test_a_timeout_is_not_a_contradiction_and_costs_no_second_try(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = Mock(side_effect=subprocess.TimeoutExpired("uv", solver.LIMIT))
    monkeypatch.setattr(uv, "execute", execute)
    stack = stack_of(tmp_path, "up\ntool==1.0\n")
    assert stack.packages["up"].version == "2.0"
    (note,) = stack.notes
    assert note.endswith("so each is looked up alone: uv did not answer within 90 s")
    assert "fit together" not in note
    assert execute.call_count == 1


@pytest.mark.parametrize("line", ["./-e evil", "./two words", "../.."])
def test_a_folder_that_names_no_package_is_said(
    published: type[Handler], tmp_path: Path, line: str
) -> None:
    file = tmp_path / "project" / "requirements.txt"
    file.parent.mkdir()
    file.write_text(f"{line}\nup\n")
    stack = environment.of_files([str(file)], ["up"])
    assert stack.packages["up"].version == "2.0"
    has_note = any(
        "line 1: it does not show which package is there" in note for note in stack.notes
    )
    assert has_note or line == "../.."
