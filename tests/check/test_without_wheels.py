"""What is known of packages that no index has wheels of, and of what they need."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.bugs import catalog
from harness.check import environment, needs, solver
from harness.check.installed import NewestOf
from harness.releases import index
from tests.check.published import publish, published, releases, stack_of, starts
from tests.index import Handler, no_network, page, served
from tests.index import file as file_of
from tests.sandbox import refused

__all__ = ["no_network", "published", "served", "starts"]


def test_it_is_known_what_each_package_of_the_catalogue_needs() -> None:
    """Otherwise a package that was not resolved counts as absent, and its bugs are lost."""
    names = {name for scenario in catalog.sound() for name in catalog.scenario(scenario).pins}
    assert names <= needs.NEEDS.keys()
    assert {need for those in needs.NEEDS.values() for need in those} <= names | {"torch"}


def test_where_nothing_is_resolved_packages_that_many_projects_name_still_need_ours(
    tmp_path: Path,
) -> None:
    stack = stack_of(tmp_path, "--no-index\nvllm==0.8.4\n", "transformers", "torch")
    assert set(releases(stack).items()) == {("torch", ""), ("transformers", "")}
    assert stack.packages["torch"].origin == "vllm needs it, and vllm could not be resolved"


def test_what_an_omission_needs_in_one_release_is_unknown(
    published: type[Handler], tmp_path: Path
) -> None:
    published.pages["vllm"] = page(file_of("vllm-1.0-cp38-cp38-win32.whl", "2023-01-01T00:00:00"))
    publish(published, "torch", "2.13.0", day="2024-01-01")
    publish(published, "peft", "0.1", "torch", day="2024-01-01")
    stack = stack_of(tmp_path, "peft==0.1\nvllm==1.0\n", "peft", "torch")
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
    stack = stack_of(tmp_path, "-c c.txt\nserve==1.0\n", "down", "deep", "torch")
    assert releases(stack) == {"down": "", "torch": ""}
    (tmp_path / "c.txt").write_text("peft @ file:///x\n")
    publish(published, "trl", "0.1", "peft", "torch", day="2024-01-01")
    publish(published, "peft", "0.1", "torch", day="2024-01-01")
    other = stack_of(tmp_path, "-c c.txt\ntrl==0.1\n", "trl", "peft", "torch")
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
    stack = stack_of(tmp_path, "-c c.txt\nup==1.0\n", "up", "down", "other")
    assert stack.packages["down"].version == ("1.5" if is_known else ""), stack
    assert any("not known: the releases of down" in n for n in stack.notes) == (not is_known)
    assert "other" not in stack.packages


def test_what_a_package_without_wheels_needs_is_resolved_as_well(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing names torch, but DeepSpeed needs it, and is left out as it has no wheels."""
    monkeypatch.setattr(needs, "NEEDS", {"source": ("down",)})
    stack = stack_of(tmp_path, "source==1.0\n")
    assert stack.packages["down"].version == "3.0"


@pytest.mark.parametrize("line", ["nowhere==3.1", "source==1.0"])
def test_a_package_whose_needs_are_not_known_is_said_if_it_is_alone(
    published: type[Handler], tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"{line}\n")
    error = refused(capsys, ["check", "-r", str(file)])
    assert f"as no index has their wheels: {line.partition('=')[0]}; {file} has none of " in error


def test_what_needs_an_unknown_release_is_said_first(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bugs would vanish: 'no up'."""
    monkeypatch.setattr(needs, "NEEDS", {"down": ("other",), "other": ("deep",)})
    error = solver.NotResolved("nobody understands it")
    monkeypatch.setattr(solver, "choose_versions", Mock(side_effect=error))
    stack = stack_of(tmp_path, "up==2.0\ndown>=3\n", "up", "down", "other", "deep")
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
    stack = stack_of(tmp_path, f"{line}\n", "down", "deepspeed")
    assert stack.notes[0] == "not known: the releases of deepspeed", "no index has it"
    assert " on deepspeed>=0.14" in stack.packages["deepspeed"].origin
    assert stack.packages["down"].version == "3.0"
    names = ("deepspeed-0.13.1.tar.gz", "deepspeed-0.15.0.tar.gz")
    published.pages["deepspeed"] = page(*(file_of(n, "2023-01-01T00:00:00") for n in names))
    index.forget()
    stack = stack_of(tmp_path, f"{line}\nup\n", "down", "deepspeed")
    assert releases(stack) == {"deepspeed": "0.15.0", "down": "2.5", "torch": "2.9.0"}
    assert stack.packages["deepspeed"] == NewestOf("0.15.0", "the other packages")
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
    stack = stack_of(tmp_path, "trainer\n", "down", "trainer")
    assert releases(stack) == {"down": "3.0", "trainer": "2.0"}
    assert stack.notes == ()


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
    stack = stack_of(tmp_path, "down\nstrict\n", "down")
    assert (releases(stack), stack.notes) == ({"down": "1.5"}, ())
    assert (
        stack_of(tmp_path, "trainer\n" if needed else "up\n", "up").packages["up"].version == "3.0"
    )
    stack = environment.of_files([str(file)], ["up"], "2024-07-15")
    assert stack.packages["up"].version == "2.0", "on that day"
