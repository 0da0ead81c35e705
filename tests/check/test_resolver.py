"""What a resolver makes of requirements, and what is not looked up."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest
from packaging.tags import platform_tags

from harness.bugs import catalog
from harness.check import environment, needs, resolution_store, resolver, solver, source_only
from harness.check.installed import Installed
from harness.releases import index, uv
from harness.system.errors import UserError
from tests.index import Handler, no_network, page, served
from tests.index import file as file_of
from tests.sandbox import refused

__all__ = ["no_network", "served"]


def publish(served: type[Handler], name: str, version: str, *needs: str, day: str) -> None:
    """Add a wheel to the index: its metadata are all that a resolver reads."""
    wheel = f"{name}-{version}-py3-none-any.whl"
    files = served.pages.get(name, page())["files"]
    entry = file_of(wheel, f"{day}T00:00:00") | {"core-metadata": True}
    served.pages[name] = page(*files, entry) | {"name": name}
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    text = "\n".join([*lines, *(f"Requires-Dist: {need}" for need in needs), "", ""])
    served.pages[f"{name}/{wheel}.metadata"] = text


@pytest.fixture
def published(served: type[Handler], cache: Path) -> type[Handler]:
    publish(served, "up", "1.0", "down<2", day="2024-01-01")
    publish(served, "up", "2.0", "down<3", day="2024-06-01")
    for version, day in (("1.5", "2023-12-01"), ("2.5", "2024-05-01"), ("3.0", "2024-07-01")):
        publish(served, "down", version, day=day)
    served.pages["source"] = page(file_of("source-1.0.tar.gz", "2023-01-01T00:00:00"))
    return served


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
    file = tmp_path / "requirements.txt"
    file.write_text(f"{text}\n")
    stack = environment.of_files([str(file)], ["up", "down"], day)
    assert {name: package.version for name, package in stack.packages.items()} == expected
    assert ("as no index has their wheels: nowhere, source" in " ".join(stack.notes)) == (
        "source" in text
    )


def releases(stack: environment.Environment) -> dict[str, str]:
    return {name: package.version for name, package in stack.packages.items()}


def test_of_requirements_that_contradict_each_other_the_files_own_count(
    published: type[Handler], tmp_path: Path
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("up==2.0\ndown>=3\n")
    stack = environment.of_files([str(file)], ["up", "down"])
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
    file = tmp_path / "requirements.txt"
    file.write_text(f"{text}\n")
    stack = environment.of_files([str(file)], ["up", "down"])
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
    file = tmp_path / "requirements.txt"
    file.write_text(f"tool==1.0\nup\n{lines}\n")
    stack = environment.of_files([str(file)], ["up", "down"])
    assert stack.packages["down"].version == "1.5", stack.notes
    assert all("fit together" not in note for note in stack.notes)
    for line in lines.splitlines():
        name = re.split(r"[\[=<>]", line)[0]
        assert any(name in note for note in stack.notes)


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
    file = tmp_path / "requirements.txt"
    file.write_text("old==1.0\nup\nsource==1.0\nnowhere\n")
    stack = environment.of_files([str(file)], ["up", "down"])
    assert stack.packages["down"].version == "1.5", stack.notes
    assert stack.notes == (
        "what these need was not looked up, as no index has their wheels: nowhere, source",
        f"releases for Python 3.{minor} were chosen, as old has no others",
    )
    publish(published, "new", "1.0", day="2024-01-01")
    published.pages["new"]["files"][0]["requires-python"] = f">=3.{minor + 1}"
    file.write_text("old==1.0\nup\nnew\n")
    assert "no index has their wheels: old" in environment.of_files([str(file)], ["up"]).notes[0]


def test_instead_of_a_development_version_that_no_index_has_its_release_decides(
    published: type[Handler], tmp_path: Path
) -> None:
    publish(published, "tool", "1.0", "down<2", day="2024-01-01")
    publish(published, "dev", "1.0.dev1", "down<2", day="2024-01-01")
    file = tmp_path / "requirements.txt"
    for text in ("tool==1.0.dev5\ndown", "dev==1.0.dev1\ndown", "up==1.0.dev20240101+cu121\ndown"):
        file.write_text(f"{text}\n")
        stack = environment.of_files([str(file)], ["up", "down"])
        assert stack.packages["down"].version == "1.5", stack.notes
        assert stack.notes == ()
    assert stack.packages["up"].version == "1.0.dev20240101"
    file.write_text("source==1.0\ntool==1.0.dev5\ndown\n")
    stack = environment.of_files([str(file)], ["up", "down"])
    assert stack.packages["down"].version == "1.5", stack.notes
    assert "tool" not in " ".join(stack.notes)
    publish(published, "other", "1.0", "tool>=2", day="2024-01-01")
    file.write_text("other==1.0\ntool==1.0.dev5\ndown\n")
    stack = environment.of_files([str(file)], ["up", "down"])
    assert stack.packages["down"].version == "1.5", stack.notes
    assert not any("no such release" in note for note in stack.notes)


def test_a_requirement_that_contradicts_itself_is_said_with_its_lines(
    published: type[Handler], tmp_path: Path
) -> None:
    """LLaVA-NeXT has pip==23.3.1 and pip==24.0: the note named nine other packages."""
    for version in ("1.0", "2.0"):
        publish(published, "pip", version, day="2024-01-01")
    file = tmp_path / "requirements.txt"
    file.write_text("pip==1.0\nup\npip==2.0\n")
    stack = environment.of_files([str(file)], ["up", "down"])
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
    file = tmp_path / "requirements.txt"
    file.write_text("toola==1.0\ntoolb==1.0\na==3.0\nb==3.0\nup==1.0\n")
    stack = environment.of_files([str(file)], ["up", "down", "a"])
    assert releases(stack) == {"a": "3.0", "up": "1.0", "down": "1.5"}
    text = " ".join(stack.notes)
    assert "a==3.0 and toola==1.0 (" in text
    assert "b==3.0 and toolb==1.0 (" in text


def test_what_two_packages_need_in_different_releases_is_unknown(
    published: type[Handler], tmp_path: Path
) -> None:
    publish(published, "old", "1.0", "down<2", day="2024-01-01")
    publish(published, "new", "1.0", "down>=3", day="2024-01-01")
    file = tmp_path / "requirements.txt"
    file.write_text("old==1.0\nnew==1.0\nup\n")
    stack = environment.of_files([str(file)], ["up", "down"])
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
    file = tmp_path / "requirements.txt"
    file.write_text(
        f"--extra-index-url http://127.0.0.1:9/whl/{label}\n{name}==1.0+{label}\ndown\n"
    )
    stack = environment.of_files([str(file)], ["up", "down"])
    assert stack.packages["down"].version == "1.5"
    assert name == "tool" or stack.packages["up"] == Installed("1.0")
    assert stack.notes == ()


@pytest.mark.usefixtures("no_network")
def test_without_a_network_the_newest_tested_releases_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("accelerate<1.15\n")
    stack = environment.of_files([str(file)], ["accelerate"])
    assert stack.packages["accelerate"].version == "1.14.0"
    assert stack.notes[0] == "not known: the releases of torch"
    assert "the package index does not respond" in stack.notes[1]
    assert "the newest tested release is taken" in stack.notes[2]
    assert "accelerate needs it" in stack.packages["torch"].origin


@pytest.mark.usefixtures("no_network")
def test_without_a_network_a_range_above_the_tested_releases_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("accelerate>=99\n")
    stack = environment.of_files([str(file)], ["accelerate"])
    assert stack.packages["accelerate"].version == ""
    assert "the package index does not respond" in stack.packages["accelerate"].origin


def test_a_project_for_other_pythons_is_resolved_for_the_oldest_of_them(tmp_path: Path) -> None:
    assert solver.other_python(">=3.99") == ""
    assert solver.other_python(">=3.8") == ""
    assert solver.other_python("<3.9,>=3.7") == "3.7"


def test_it_is_known_what_each_package_of_the_catalogue_needs() -> None:
    """Otherwise a package that was not resolved counts as absent, and its bugs are lost."""
    names = {name for scenario in catalog.sound() for name in catalog.scenario(scenario).pins}
    assert names <= needs.NEEDS.keys()
    assert {need for those in needs.NEEDS.values() for need in those} <= names | {"torch"}


def test_where_nothing_is_resolved_packages_that_many_projects_name_still_need_ours(
    tmp_path: Path,
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("--no-index\nvllm==0.8.4\n")
    stack = environment.of_files([str(file)], ["transformers", "torch"])
    assert set(releases(stack).items()) == {("torch", ""), ("transformers", "")}
    assert stack.packages["torch"].origin == "vllm needs it, and vllm could not be resolved"


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


def test_what_an_omission_needs_in_one_release_is_unknown(
    published: type[Handler], tmp_path: Path
) -> None:
    published.pages["vllm"] = page(file_of("vllm-1.0-cp38-cp38-win32.whl", "2023-01-01T00:00:00"))
    publish(published, "torch", "2.13.0", day="2024-01-01")
    publish(published, "peft", "0.1", "torch", day="2024-01-01")
    file = tmp_path / "requirements.txt"
    file.write_text("peft==0.1\nvllm==1.0\n")
    stack = environment.of_files([str(file)], ["peft", "torch"])
    assert releases(stack) == {"peft": "0.1", "torch": ""}, stack
    assert stack.packages["torch"].origin == "vllm needs it, and vllm was left out"


def test_what_the_release_of_another_address_needs_is_not_taken_for_it(
    published: type[Handler], tmp_path: Path
) -> None:
    """uv looks at a release of the index, which a constraint replaces."""
    publish(published, "down", "1.9", "deep>=2", day="2024-01-01")
    publish(published, "deep", "2.0", day="2024-01-01")
    publish(published, "torch", "2.13.0", day="2024-01-01")
    publish(published, "vllm", "2.0", "torch==2.13.0", day="2024-01-01")
    publish(published, "serve", "1.0", "vllm", "down", day="2024-01-01")
    publish(published, "deepspeed", "0.1", day="2024-01-01")
    publish(published, "more", "1.0", "deepspeed", day="2024-01-01")
    (tmp_path / "c.txt").write_text("deepspeed @ file:///x\n")
    (tmp_path / "m.txt").write_text("-c c.txt\nmore==1.0\n")
    stack = environment.of_files([str(tmp_path / "m.txt")], ["deepspeed", "torch"])
    assert releases(stack) == {"deepspeed": "", "torch": ""}
    (tmp_path / "c.txt").write_text("down @ file:///x\nvllm @ git+https://a.example/x/vllm\n")
    file = tmp_path / "requirements.txt"
    file.write_text("-c c.txt\nserve==1.0\n")
    stack = environment.of_files([str(file)], ["down", "deep", "torch"])
    assert releases(stack) == {"down": "", "torch": ""}
    (tmp_path / "c.txt").write_text("peft @ file:///x\n")
    publish(published, "trl", "0.1", "peft", "torch", day="2024-01-01")
    publish(published, "peft", "0.1", "torch", day="2024-01-01")
    file.write_text("-c c.txt\ntrl==0.1\n")
    other = environment.of_files([str(file)], ["trl", "peft", "torch"])
    assert releases(other) == {"trl": "0.1", "peft": "", "torch": "2.13.0"}  # any torch will do
    assert "do not come from an index: down, vllm" in " ".join(stack.notes)


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        ("down @ git+https://a.example/x/down", False),
        ("down @ file:///x", False),
        ("down==1.5", True),
    ],
)
def test_what_is_needed_and_has_an_address_in_a_constraints_file_is_unknown(
    published: type[Handler], tmp_path: Path, line: str, is_known: bool
) -> None:
    (tmp_path / "c.txt").write_text(f"{line}\nother @ file:///y\n")
    file = tmp_path / "requirements.txt"
    file.write_text("-c c.txt\nup==1.0\n")
    stack = environment.of_files([str(file)], ["up", "down", "other"])
    assert stack.packages["down"].version == ("1.5" if is_known else ""), stack
    assert any("not known: the releases of down" in n for n in stack.notes) == (not is_known)
    assert "other" not in stack.packages


def test_what_a_package_without_wheels_needs_is_resolved_as_well(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing names torch, but DeepSpeed needs it, and is left out as it has no wheels."""
    monkeypatch.setattr(needs, "NEEDS", {"source": ("down",)})
    file = tmp_path / "requirements.txt"
    file.write_text("source==1.0\n")
    stack = environment.of_files([str(file)], ["up", "down"])
    assert stack.packages["down"].version == "3.0"


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
    file = tmp_path / "requirements.txt"
    file.write_text(f"{line}\ndown\n")
    (first_note, *_) = environment.of_files([str(file)], ["up", "down"], day).notes
    assert first_note.startswith(note)
    assert re.split("[=>]", line)[0] in first_note


def test_before_the_first_release_a_package_is_unknown(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to be the newest tested release."""
    monkeypatch.setattr(resolver, "tested_releases", lambda _: ("9.0",))
    file = tmp_path / "requirements.txt"
    file.write_text("up>=1\n")
    up = environment.of_files([str(file)], ["up"], "1990-01-01").packages["up"]
    assert up.version == ""
    assert up.origin == "the index has no release of it for this Python until 1990-01-01"
    file.write_text("up>=2\n")
    with pytest.raises(UserError, match=r"no release until 2024-03-01 is up>=2: they go from 1\.0"):
        environment.of_files([str(file)], ["up"], "2024-03-01")


@pytest.mark.parametrize("line", ["nowhere==3.1", "source==1.0"])
def test_a_package_whose_needs_are_not_known_is_said_if_it_is_alone(
    published: type[Handler], tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"{line}\n")
    error = refused(capsys, ["check", "-r", str(file)])
    assert f"as no index has their wheels: {line.partition('=')[0]}; {file} has none of " in error


def test_packages_that_fit_together_without_the_others_are_resolved(
    published: type[Handler], tmp_path: Path
) -> None:
    publish(published, "tool", "1.0", "missing>=9", day="2024-01-01")
    file = tmp_path / "requirements.txt"
    file.write_text("up\ntool==1.0\nmissing<9\n")
    publish(published, "missing", "1.0", day="2024-01-01")
    stack = environment.of_files([str(file)], ["up", "down"])
    assert releases(stack) == {"up": "2.0", "down": "2.5"}
    assert "missing<9 and tool==1.0 (tool==1.0 depends on missing>=9)" in stack.notes[0]


def test_a_timeout_is_not_a_contradiction_and_costs_no_second_try(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = Mock(side_effect=subprocess.TimeoutExpired("uv", solver.LIMIT))
    monkeypatch.setattr(uv, "execute", execute)
    file = tmp_path / "requirements.txt"
    file.write_text("up\ntool==1.0\n")
    stack = environment.of_files([str(file)], ["up", "down"])
    assert stack.packages["up"].version == "2.0"
    (note,) = stack.notes
    assert note.endswith("so each is looked up alone: uv did not answer within 90 s")
    assert "fit together" not in note
    assert execute.call_count == 1


def test_a_contradiction_may_contain_the_word_index(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors with that word passed for those of a silent index."""
    error = solver.NotResolved("tool-index 1.0 needs missing>=9")
    solution = solver.Solution({"up": "1.0"})
    monkeypatch.setattr(solver, "choose_versions", Mock(side_effect=[error, solution]))
    file = tmp_path / "requirements.txt"
    file.write_text("up\ntool-index==1.0\n")
    stack = environment.of_files([str(file)], ["up"])
    assert stack.packages["up"].version == "1.0"
    assert stack.notes[0].startswith("no releases were found that fit together, so tool-index was")


def test_what_needs_an_unknown_release_is_said_first(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bugs would vanish: 'no up'."""
    monkeypatch.setattr(needs, "NEEDS", {"down": ("other",), "other": ("deep",)})
    error = solver.NotResolved("nobody understands it")
    monkeypatch.setattr(solver, "choose_versions", Mock(side_effect=error))
    file = tmp_path / "requirements.txt"
    file.write_text("up==2.0\ndown>=3\n")
    stack = environment.of_files([str(file)], ["up", "down", "other", "deep"])
    assert stack.notes[0] == "not known: the releases of deep and other"
    assert stack.packages["other"].version == ""
    assert "down needs it" in stack.packages["other"].origin


NEED = "deepspeed>=0.14"
EXTRA = f'{NEED}; extra == "deepspeed"'


@pytest.mark.parametrize(("line", "need"), [("trainer[deepspeed]", EXTRA), ("trainer", NEED)])
def test_what_a_package_needs_does_not_vanish_where_it_has_no_wheels(
    published: type[Handler], tmp_path: Path, line: str, need: str
) -> None:
    """uv is told what deepspeed needs: none of its files is read, and nothing is built."""
    publish(published, "trainer", "1.0", "down", need, day="2024-01-01")
    publish(published, "torch", "2.9.0", day="2024-01-01")
    file = tmp_path / "requirements.txt"
    file.write_text(f"{line}\n")
    stack = environment.of_files([str(file)], ["down", "deepspeed"])
    assert stack.notes[0] == "not known: the releases of deepspeed", "no index has it"
    assert " on deepspeed>=0.14" in stack.packages["deepspeed"].origin
    assert stack.packages["down"].version == "3.0"
    names = ("deepspeed-0.13.1.tar.gz", "deepspeed-0.15.0.tar.gz")
    published.pages["deepspeed"] = page(*(file_of(n, "2023-01-01T00:00:00") for n in names))
    index.forget()
    file.write_text(f"{line}\nup\n")
    stack = environment.of_files([str(file)], ["down", "deepspeed"])
    assert releases(stack) == {"deepspeed": "0.15.0", "down": "2.5", "torch": "2.9.0"}
    assert stack.packages["deepspeed"].newest_of == "the other packages"
    assert not any(path.endswith(".gz") for path in published.requests)


def test_the_users_configuration_of_uv_may_leave_unknown_what_has_no_wheels(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = tmp_path / "uv.toml"
    monkeypatch.setenv("UV_CONFIG_FILE", str(configuration))
    publish(published, "trainer", "1.0", "down", "deepspeed>=0.14", day="2024-01-01")
    published.pages["deepspeed"] = page(file_of("deepspeed-0.15.0.tar.gz", "2023-01-01T00:00:00"))
    file = tmp_path / "requirements.txt"
    file.write_text("trainer\n")
    (tmp_path / "wheels").mkdir()
    own = '{name = "deepspeed", requires-dist = ["down<2"]}'
    texts = (f"dependency-metadata = [{own}]", 'find-links = ["./wheels"]')
    for text in (*texts, '[[dependency-metadata]]\nname = "up"'):
        configuration.write_text(f"{text}\n")
        stack = environment.of_files([str(file)], ["down", "deepspeed"])
        assert "deepspeed" in stack.packages, (text, stack.notes)
        package = stack.packages["deepspeed"]
        is_alone = text in texts
        assert package.version == ("" if is_alone else "0.15.0")
        assert ("configuration of uv" in package.origin) == is_alone


@pytest.mark.parametrize("need", ["source", "source>=0.5", "source<2"])
def test_no_old_release_is_taken_because_the_newest_needs_what_has_no_wheel(
    published: type[Handler], tmp_path: Path, need: str
) -> None:
    """hydra-core was 0.11.3, as no other release does without antlr4-python3-runtime."""
    publish(published, "trainer", "1.0", "down<2", day="2021-01-01")
    publish(published, "trainer", "2.0", "down", need, day="2024-01-01")
    published.pages["source"]["files"].append(file_of("source-0.4-py2-none-any.whl"))
    file = tmp_path / "requirements.txt"
    file.write_text("trainer\n")
    stack = environment.of_files([str(file)], ["down", "trainer"])
    assert releases(stack) == {"down": "3.0", "trainer": "2.0"}
    assert stack.notes == ()


def test_the_log_of_uv_says_which_searches_failed() -> None:
    """uv comes back to a package: a search is no failure if a later selection is in its range."""
    lines = [
        "Searching for a compatible version of late (>=2)",
        "Searching for a compatible version of Source (>=4.9.dev0, <4.10.dev0)",
        "Searching for a compatible version of source (>=4.9.dev0, <=4.9.2)",
        "Searching for a compatible version of build (==4.8)",
        "Selecting: build==4.8+cu121 [compatible] (build-4.8-py3-none-any.whl)",
        "Searching for a compatible version of late[more] (<1 | >=2, <3+)",
        "Selecting: late==2.5 [compatible] (late-2.5-py3-none-any.whl)",
    ]
    searches = source_only.searches("\n".join(f"DEBUG {line}" for line in lines))
    assert [(search.requirement, search.selected) for search in searches] == [
        ("source>=4.9.dev0, <4.10.dev0", ""),
        ("source>=4.9.dev0, <=4.9.2", ""),
        ("late>=2", "2.5"),
    ]


@pytest.mark.parametrize("needed", [False, True])
def test_a_release_that_pip_would_build_is_the_newest_one(
    published: type[Handler], tmp_path: Path, needed: bool
) -> None:
    publish(published, "trainer", "1.0", "up", day="2024-01-01")
    published.pages["up"]["files"].append(file_of("up-3.0.tar.gz", "2024-08-01T00:00:00"))
    for version in ("1.5", "2.5", "3.0"):  # what has a wheel, too, is an old release by right
        published.pages["down"]["files"].append(file_of(f"down-{version}.tar.gz"))
    published.pages["down"]["files"].append(file_of("down-4.0-cp38-cp38-win32.whl"))
    file = tmp_path / "requirements.txt"
    publish(published, "strict", "1.0", "inner", day="2024-01-01")
    publish(published, "inner", "1.0", "down<2", day="2024-01-01")
    file.write_text("down\nstrict\n")
    stack = environment.of_files([str(file)], ["down"])
    assert (releases(stack), stack.notes) == ({"down": "1.5"}, ())
    file.write_text("trainer\n" if needed else "up\n")
    assert environment.of_files([str(file)], ["up"]).packages["up"].version == "3.0"
    stack = environment.of_files([str(file)], ["up"], "2024-07-15")
    assert stack.packages["up"].version == "2.0", "on that day"


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


# The same input on the same day


def requested_packages(published: type[Handler]) -> list[str]:
    """The packages that an index was asked for since the last call."""
    packages = [path.split("/")[2] for path in published.requests]
    published.requests.clear()
    index.forget()  # as in a new process
    return packages


@pytest.fixture
def unpinned(published: type[Handler], tmp_path: Path) -> str:
    """A file that names a release of nothing, and a package without wheels."""
    (tmp_path / "requirements.txt").write_text("up\nsource\nnowhere\n")
    return str(tmp_path / "requirements.txt")


def test_the_same_input_is_resolved_once_a_day(
    published: type[Handler], unpinned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_answer = environment.of_files([unpinned], ["up", "down", "source"])
    assert {"up", "source"} <= set(requested_packages(published))
    publish(published, "up", "3.0", day="2024-09-01")
    assert environment.of_files([unpinned], ["up", "down", "source"]) == first_answer
    assert requested_packages(published) == []
    monkeypatch.setattr(resolution_store, "_today", lambda: "2999-01-01")
    monkeypatch.setenv("UV_CACHE_DIR", f"{unpinned}.uv")  # uv keeps a page for ten minutes
    answer = environment.of_files([unpinned], ["up", "down", "source"])
    assert answer.packages["up"].version == "3.0"


@pytest.mark.parametrize(
    ("text", "names", "day", "variable"),
    [
        ("up<2\nsource\nnowhere", ("up", "down", "source"), "", ""),
        ("up\nsource\nnowhere\n-c bounds.txt", ("up", "down", "source"), "", ""),
        ("up\nsource\nnowhere", ("up", "down", "source"), "2024-03-01", ""),
        ("up\nsource\nnowhere", ("up", "source"), "", ""),
        ("up\nsource\nnowhere", ("up", "down", "source"), "", "UV_RESOLUTION"),
    ],
)
def test_another_input_is_resolved(
    published: type[Handler],
    unpinned: str,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    names: tuple[str, ...],
    day: str,
    variable: str,
) -> None:
    environment.of_files([unpinned], ["up", "down", "source"])
    requested_packages(published)
    Path(unpinned).with_name("bounds.txt").write_text("down<2\n")
    Path(unpinned).write_text(text)
    if variable:
        monkeypatch.setenv(variable, "lowest")
    environment.of_files([unpinned], names, day)
    assert requested_packages(published)


def test_another_index_another_uv_and_another_python_are_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [str(resolution_store._key(["up"]))]
    for module, function in (
        (index, "configured"),
        (resolution_store, "release_of"),
        (resolution_store, "default_environment"),
        (platform, "libc_ver"),
    ):
        monkeypatch.setattr(module, function, lambda *_: {"another": "1"})
        keys.append(str(resolution_store._key(["up"])))
    assert len(set(keys)) == 5


@pytest.mark.parametrize("text", ["up\nsource==9.9\n--find-links wheels\n"])
def test_a_failed_resolution_is_not_kept(
    published: type[Handler], cache: Path, unpinned: str, text: str
) -> None:
    Path(unpinned).write_text(text)
    environment.of_files([unpinned], ["up", "down"])
    assert not cache.exists()


@pytest.mark.usefixtures("no_network")
def test_an_answer_without_an_index_is_not_kept(cache: Path, unpinned: str) -> None:
    Path(unpinned).write_text("accelerate\n")
    environment.of_files([unpinned], ["accelerate"])
    assert not cache.exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"inputs": 5}', "null"])
def test_a_damaged_answer_is_resolved_again(
    published: type[Handler], cache: Path, unpinned: str, damage: str
) -> None:
    answer = environment.of_files([unpinned], ["up", "down", "source"])
    (file,) = (cache / "cells").iterdir()
    file.write_text(damage)
    assert environment.of_files([unpinned], ["up", "down", "source"]) == answer
    assert file.read_text() != damage


def test_what_is_kept_contains_no_password_and_is_not_beside_the_file(
    published: type[Handler], cache: Path, unpinned: str
) -> None:
    environment.of_files([unpinned], ["up", "down", "source"])
    (file,) = (cache / "cells").iterdir()
    assert "secret" not in file.read_text()
    assert [path.name for path in Path(unpinned).parent.iterdir() if path.is_file()] == [
        "requirements.txt"
    ]


def test_a_cache_that_cannot_be_written_changes_no_answer(
    published: type[Handler], unpinned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE", "/dev/null")
    for _ in range(2):
        stack = environment.of_files([unpinned], ["up", "down", "source"])
        assert stack.packages["up"].version == "2.0"
