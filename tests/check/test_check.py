"""The command ``check``: what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from harness.__main__ import main
from harness.bugs import catalog
from harness.check.bug_status import BugStatus, Checked, recorded
from harness.check.check_report import Report
from harness.check.github import github_annotations
from harness.cli import check as check_command
from harness.system.files import ROOT
from tests.check.test_bug_status import environment
from tests.sandbox import refused
from tests.slow import slow

pytestmark = pytest.mark.usefixtures("offline", "working_folder")

Capture = pytest.CaptureFixture[str]


def file(folder: Path, *lines: str) -> str:
    path = folder / "requirements.txt"
    path.write_text("\n".join(lines))
    return str(path)


def test_a_bug_is_printed_with_its_harm_its_releases_its_remedy_and_its_command(
    tmp_path: Path, capsys: Capture
) -> None:
    stack = file(tmp_path, "transformers==5.3.0", "accelerate==1.13.0")
    assert main(["check", "--long", "-r", stack]) == 1
    out, scenario = capsys.readouterr().out, catalog.scenario("trainer_gas_twice")
    assert f"ruins training (silent): {scenario.title} [trainer_gas_twice]" in out
    assert "transformers 5.2.0 to 5.5.3; 5.5.4 is not affected" in out
    assert f"only with: {scenario.trigger}" in out
    assert "use transformers 5.5.4\n" in out
    assert "run scenario=trainer_gas_twice variant=released pins.transformers=5.3.0" in out
    assert "about packages or releases that you do not have" in out.splitlines()[-1]


def test_the_first_lines_answer_and_what_needs_settings_has_a_line_each(
    tmp_path: Path, capsys: Capture
) -> None:
    stack = file(tmp_path, "deepspeed==0.19.8", "transformers==5.3.0", "accelerate==1.13.0")
    assert main(["check", "-r", stack]) == 1
    out = capsys.readouterr().out
    assert re.search(
        r"^0 bugs affect you\. \d+ more depend on settings that you have not named\.", out, re.M
    )
    assert re.search(r"^  fp16_overflow \(stops\): only with dynamic loss scaling", out, re.M)
    assert "remedy:" not in out
    assert main(["check", "-r", stack, "--long"]) == 1
    assert "remedy:" in capsys.readouterr().out
    (tmp_path / "args.json").write_text('{"gradient_accumulation_steps": 4}')
    main(["check", "-r", stack, "--training-args", str(tmp_path / "args.json")])
    out = capsys.readouterr().out
    assert re.search(
        r"^[1-9]\d* bugs? affects? you\. \d+ more .* that are not in your files\.", out, re.M
    )
    assert "[trainer_gas_twice]" in out


def test_the_json_has_every_bug_and_the_version_of_its_schema(
    tmp_path: Path, capsys: Capture
) -> None:
    assert main(["check", "--json", "-r", file(tmp_path, "deepspeed==0.13.3")]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == 2
    assert content["environment"]["packages"]["deepspeed"]["version"] == "0.13.3"
    assert {bug["name"] for bug in content["bugs"]} == set(catalog.sound())
    (bug,) = [bug for bug in content["bugs"] if bug["name"] == "warmup_first_step"]
    assert bug["status"] == "affected"
    assert bug["periods"][0]["after"] == "0.15.3"


def test_annotations_of_github_are_one_line_each_and_escaped() -> None:
    bugs = recorded(["trainer_gas_twice", "bf16_clip"], environment({"deepspeed": "0.19.8"}))
    assert list(github_annotations(Report(environment({}), bugs))) == []
    stack = environment({"transformers": "5.3.0", "accelerate": "1.13.0"})
    stack = replace(stack, file="a,b:c%.txt")
    (line,) = github_annotations(Report(stack, recorded(["trainer_gas_twice"], stack)))
    title = "title=trainer_gas_twice%3A depends on settings::"
    assert line.startswith(f"::warning file=a%2Cb%3Ac%25.txt,{title}")


def printed_for_github(capsys: Capture, *words: str) -> list[str]:
    main(["check", *words, "--format", "github"])
    return capsys.readouterr().out.splitlines()


def test_annotations_begin_with_what_was_not_looked_up(tmp_path: Path, capsys: Capture) -> None:
    file(tmp_path, "# ours", "transformers==5.2.0", "accelerate>=1.13", "./vendored/-x y", "-e .")
    lines = printed_for_github(capsys, "-r", "requirements.txt")
    notices = [line for line in lines if ",title=check::" in line]
    assert lines[: len(notices)] == notices
    begin = "::notice file=requirements.txt,"
    title = "title=check::requirements.txt, line 4: it does not show which package is there"
    assert f"{begin}line=4,{title}" in notices
    assert any("line 5: its dependencies were not read" in line for line in notices)
    (bug,) = [line for line in lines if "title=trainer_gas_twice" in line]
    assert bug.startswith("::warning file=requirements.txt,line=2,title=")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (".", "file=pyproject.toml,line=2,title="),
        ("pyproject.toml[train]", "file=more/base.txt,line=1,title="),
        ("more/base.txt", "file=more/base.txt,line=1,title="),
        ("more", "file=more/requirements.txt,line=1,title="),
        ("all.txt", "file=more/base.txt,line=1,title="),
    ],
)
def test_an_annotation_is_at_the_file_and_the_line_that_were_read(
    capsys: Capture, name: str, expected: str
) -> None:
    Path("more").mkdir()
    Path("more/base.txt").write_text("transformers==5.2.0\n")
    Path("more/requirements.txt").write_text("transformers==5.2.0\n")
    Path("all.txt").write_text("\n-r more/base.txt\n")
    Path("pyproject.toml").write_text(
        '[project]\ndependencies = ["transformers==5.2.0"]\n'
        if name == "."
        else '[project]\nname = "mine"\ndynamic = ["optional-dependencies"]\n'
        '[tool.setuptools.dynamic]\noptional-dependencies.train.file = "more/base.txt"\n'
    )
    (bug,) = [
        line for line in printed_for_github(capsys, "-r", name) if "title=trainer_gas" in line
    ]
    assert bug.startswith(f"::warning {expected}")


def test_the_summary_counts_every_answer() -> None:
    checked = [Checked("a", answer, "", {}) for answer in (BugStatus.AFFECTED, *BugStatus)]
    numbers = "7 bugs: 2 affect you, 1 depends on settings, 1 unknown, 1 not in your releases, "
    assert Report(environment({}), checked, settings={}).summary().startswith(numbers)
    assert Report(environment({}), []).summary() == "0 bugs: none"


ANSWER = r"(\d+) bugs? affects? you. (\d+) more depends? on settings .*?. (\d+) (?:is|are) unknown."


@pytest.mark.parametrize("files", [[], ["--training-args", "args.json"]])
def test_every_format_says_the_same_of_a_bug(
    tmp_path: Path, capsys: Capture, files: list[str]
) -> None:
    """``--long`` had no bug that affects the user in its first line, and 15 below AFFECTED."""
    Path("args.json").write_text('{"gradient_accumulation_steps": 4}')
    words = ["-r", file(tmp_path, "transformers==5.2.0", "accelerate==1.13.0"), *files]
    main(["check", *words, "--long", "--format", "markdown:a.md", "--format", "json:a.json"])
    out = capsys.readouterr().out
    answer = re.search(ANSWER, out)
    assert answer
    affect, depend, _ = map(int, answer.groups())
    assert (affect > 0) == bool(files)
    heading = re.compile(r"^([A-Z ]+)$", re.MULTILINE)
    parts = dict(zip(*[iter(heading.split(out)[1:])] * 2, strict=True))
    numbers = {name: len(re.findall(r"^\w.*\]$", text, re.M)) for name, text in parts.items()}
    assert numbers.get("AFFECT YOU", 0) == affect
    assert numbers["DEPEND ON SETTINGS"] == depend
    last = out.splitlines()[-1]
    assert f" {depend} depend on settings, " in last
    assert (f" {affect} affect" in last) == bool(files)
    assert "affected" not in last
    page = Path("a.md").read_text()
    assert (page.count("| affects you |"), page.count("| depends on settings |")) == (
        affect,
        depend,
    )
    lines = printed_for_github(capsys, *words)
    titles = [line.partition("::")[2] for line in lines if "title=" in line]
    assert sum("%3A affects you::" in title for title in titles) == affect
    assert sum("%3A depends on settings::" in title for title in titles) == depend
    bugs = json.loads(Path("a.json").read_text())["bugs"]
    assert len([b for b in bugs if b["status"] in ("affected", "possibly affected")]) == (
        affect + depend
    )


@pytest.mark.parametrize(
    ("line", "options", "code"),
    [
        ("deepspeed==0.13.2", [], 1),
        ("deepspeed==0.13.3", [], 0),
        ("deepspeed==99.0", [], 0),
        ("deepspeed==99.0", ["--strict"], 3),
        ("deepspeed==0.13.2", ["--deepspeed", "ds.json"], 0),
        ("deepspeed==0.13.2", ["--fail-on", "certain"], 0),
        ("deepspeed==0.13.2", ["--fail-on", "certain", "--deepspeed", "clips.json"], 1),
        ("deepspeed==99.0", ["--fail-on", "certain", "--strict"], 3),
    ],
)
def test_the_exit_code_says_whether_a_bug_is_there(
    tmp_path: Path, line: str, options: list[str], code: int
) -> None:
    Path("ds.json").write_text('{"gradient_clipping": 0}')
    Path("clips.json").write_text('{"gradient_clipping": 1.0}')
    words = ["check", "scenario=clip_max_for_min", "-r", file(tmp_path, line), *options]
    assert main(words) == code


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("-r . --format json:requirements.txt", "requirements.txt is read"),
        ("-r requirements.txt --format json:./requirements.txt", "requirements.txt is read"),
        ("-r requirements.txt --deepspeed ds.json --format json:ds.json", "ds.json is read"),
        ("-r . --format json:new --format markdown:new", "new is written for another option"),
    ],
)
def test_a_report_replaces_no_file_that_is_read_and_no_other_report(
    tmp_path: Path, capsys: Capture, words: str, why: str
) -> None:
    texts = {"requirements.txt": "deepspeed==0.13.2\n", "ds.json": '{"gradient_clipping": 0}'}
    for name, text in texts.items():
        Path(name).write_text(text)
    assert why in refused(capsys, ["check", *words.split()])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == texts
    null = ["--format", "json:/dev/null", "--format", "markdown:/dev/null"]
    assert main(["check", "scenario=clip_max_for_min", "-r", ".", *null]) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("n" * 300, "File name too long"),
        ("n" * 300 + "[train]", "File name too long"),
        ("n/" * 3000, "File name too long"),
        ("loop", "Too many levels of symbolic links"),
        ("a\0b", "null byte"),
        ("", "-r names no file"),
        ("requirements.txt[a]", "requirements.txt has no extra or group a; it has: none"),
        ("uv.lock[a,b]", "uv.lock has no extras or groups: leave [a,b] out"),
    ],
    ids=lambda text: text[:12],
)
def test_a_name_that_names_no_file_is_a_mistake(
    tmp_path: Path, capsys: Capture, name: str, message: str
) -> None:
    Path("loop").symlink_to("loop")
    Path("uv.lock").write_text("version = 1\n")
    file(tmp_path, "transformers==5.2.0")
    error = refused(capsys, ["check", "-r", name])
    assert message in error
    assert len(error) < 300


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml", "uv.lock"])
@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to(path), lambda path: path.symlink_to("gone")]
)
def test_a_folder_with_what_is_no_file_is_refused_with_the_reason(
    tmp_path: Path, capsys: Capture, name: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / name)
    error = refused(capsys, ["check", "-r", str(tmp_path)])
    assert f"; it has {name}, which is no file; name it with -r" in error


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("gone")])
def test_a_folder_whose_lock_file_is_no_file_says_so_beside_the_file_that_was_read(
    tmp_path: Path, capsys: Capture, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "uv.lock")
    (tmp_path / "requirements.txt").write_text("deepspeed==0.13.2\n")
    assert main(["check", "-r", str(tmp_path), "scenario=clip_max_for_min"]) == 1
    output = capsys.readouterr().out
    assert f"{tmp_path}: it has uv.lock, which " in output
    assert "; requirements.txt was read\n" in output


def test_a_pipe_that_the_user_names_is_read(tmp_path: Path, capsys: Capture) -> None:
    """``-r <(pip freeze)``"""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("deepspeed==0.13.2\n",))
    writer.start()
    assert main(["check", "-r", str(pipe), "scenario=clip_max_for_min"]) == 1
    writer.join()


def test_an_environment_without_any_of_the_packages_is_a_mistake_and_not_an_all_clear(
    tmp_path: Path, capsys: Capture
) -> None:
    error = refused(capsys, ["check", "-r", file(tmp_path, "huggingface-hub==1.0.1")])
    count = len({pin for name in catalog.sound() for pin in catalog.scenario(name).pins})
    usual = "torch, transformers, accelerate and deepspeed"
    expected = f"requirements.txt has none of the {count} packages with known bugs, such as {usual}"
    assert f"{expected}: name another environment with --python" in error
    assert len(error) < len(str(tmp_path)) + 320
    assert "has none of accelerate: name another" in refused(
        capsys, ["check", "-r", file(tmp_path, "numpy==2.0"), "scenario=sampler_shards"]
    )


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("./vendored/-x y", "line 1: it does not show which package is there"),
        ("-e .", "line 1: its dependencies were not read"),
        ("--no-index\nmine==1.0", "--no-index forbids to look up what packages need"),
        ("./-x y\n./-x z\n" * 10, "line 5: it does not show which package is there; 15 more lines"),
    ],
)
def test_what_was_not_looked_up_is_said_if_nothing_else_is_there(
    tmp_path: Path, capsys: Capture, line: str, note: str
) -> None:
    file(tmp_path, line)
    error = refused(capsys, ["check", "-r", "requirements.txt"])
    assert note in error
    assert error.index(note) < error.index("requirements.txt has none of the ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "requirements.txt: deepspeed 0.13.2"),
        (["--fail-on", "certain"], "requirements.txt: deepspeed 0.13.2"),
        (["-r", "other.txt"], "other.txt: deepspeed 0.13.3"),
        (["--python", sys.executable], f"{sys.executable} (Python "),
    ],
)
def test_a_hook_with_other_words_checks_its_folder_and_not_its_own_python(
    tmp_path: Path, capsys: Capture, words: list[str], expected: str
) -> None:
    """``args`` of a hook replace its own ``args``, and the folder was one of them."""
    file(tmp_path, "deepspeed==0.13.2")
    Path("other.txt").write_text("deepspeed==0.13.3\n")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert "args" not in hook
    _, *entry = hook["entry"].split()
    main([*entry, *words, "scenario=clip_max_for_min"])
    assert capsys.readouterr().out.startswith(expected)


def test_the_answers_need_no_torch_no_hydra_and_no_process() -> None:
    code = (
        "import sys, os; from harness.__main__ import main; "
        "sys.addaudithook(lambda event, _: event == 'subprocess.Popen' and os._exit(9)); "
        "main(['check']); print(sorted({'torch', 'hydra', 'yaml'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.stdout.splitlines()[-1] == "[]", process.stderr


def lock(folder: Path, *versions: str) -> str:
    """A poetry.lock with several releases of transformers, as for different groups."""
    packages = "".join(
        f'[[package]]\nname = "transformers"\nversion = "{version}"\n' for version in versions
    )
    packages += '[[package]]\nname = "accelerate"\nversion = "1.13.0"\n'
    metadata = '[metadata]\nlock-version = "2.1"\npython-versions = ">=3.10"\n'
    (folder / "poetry.lock").write_text(packages + metadata)
    return str(folder / "poetry.lock")


@pytest.mark.parametrize(
    ("versions", "status", "release"),
    [
        (("5.2.0", "5.6.0"), "possibly affected", "5.2.0"),
        (("5.6.0", "5.2.0"), "possibly affected", "5.2.0"),
        (("5.2.0", "5.3.0"), "affected", "5.2.0"),
        (("5.5.4", "5.6.0"), "not affected", "5.5.4"),
        (("4.36.2", "4.57.0"), "not affected", "4.36.2"),
    ],
)
def test_of_several_releases_each_that_may_be_installed_counts(
    tmp_path: Path, capsys: Capture, versions: tuple[str, ...], status: str, release: str
) -> None:
    code = main(["check", "-r", lock(tmp_path, *versions), "--json", "scenario=trainer_gas_twice"])
    content = json.loads(capsys.readouterr().out)
    (bug,) = content["bugs"]
    assert (bug["status"], bug["releases"]["transformers"]) == (status, release), bug["why"]
    assert f"transformers {' or '.join(versions)}" in content["text"]
    assert code == (1 if "affected" in status and "not" not in status else 0)


@pytest.mark.parametrize("form", [["--json"], ["--long"], ["--format", "github"], []], ids=str)
@pytest.mark.parametrize("package", ["torch", "transformers", "deepspeed", "lightning"])
def test_a_package_from_git_is_unknown_in_every_format(
    tmp_path: Path, capsys: Capture, form: list[str], package: str
) -> None:
    lines = file(tmp_path, f"{package} @ git+https://host/{package}", "accelerate==1.13.0")
    assert main(["check", "-r", lines, *form]) in (0, 1)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "installed from git" in printed.out


@pytest.mark.parametrize("format_", ["text", "github", "json", "sarif", "markdown"])
def test_a_line_break_of_a_user_begins_no_line(
    tmp_path: Path, capsys: Capture, format_: str
) -> None:
    """GitHub takes a line that begins with ``::`` as a command."""
    folder = tmp_path / "a\n::error::b"
    folder.mkdir()
    lines = folder / "c\n::error::d.txt"
    lines.write_text("transformers==5.2.0\n./e\\n::error::f\n")
    assert main(["check", "-r", str(lines), "--format", format_]) == 1
    project = folder / "pyproject.toml"
    project.write_text('[project]\ndependencies = ["up\\n::error::x", "transformers"]\n')
    assert main(["check", "-r", str(project), "--format", format_]) == 2
    printed = capsys.readouterr()
    assert not re.search(r"^::error::[bdfx]", printed.out + printed.err, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "name",
    [
        *("::error::pwn.txt", "  ::error::pwn.txt", "##[error]pwn.txt"),
        *("##vso[task.complete]pwn.txt", "##teamcity[x]pwn.txt", "a##VSO[x]pwn.txt"),
    ],
)
@pytest.mark.parametrize(
    "options", [["--long"], *(["--format", name] for name in ("text", *check_command.FORMATS))]
)
def test_the_name_of_a_file_is_no_command_of_a_ci_service(
    name: str,
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    Path(name).write_text("deepspeed==0.13.2\n")
    main(["check", "-r", name, *options])
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    assert any("pwn.txt" in line for line in lines)
    assert not any(
        line.lstrip().startswith("::error::pwn") or re.search(r"##\w*\[", line) for line in lines
    )
    if "json" in options:
        assert json.loads(printed.out)["environment"]["where"] == name, "its content is the same"


SECRETS = {
    "r.txt": [
        *("--index https://user:SECRET@host/simple", "a =https://user:SECRET@host/-x"),
        *("--index-url ftp://user:pa/SECRET@host/simple", "-r https://SECRET@host/r.txt"),
        *("a=https://user:SECRET@host/x", "-i https://host/x?token=SECRET --odd"),
    ],
    "environment.yml": [
        *("https://host/t/SECRET/chan::%transformers=5", "https://user:pa/SECRET@host/c::%x"),
        "https://user:12/SECRET@host.org:9/c::%x",
    ],
    "pyproject.toml": ["--index https://user:p:SECRET@host/simple", "a https://SECRET@host"],
}


@pytest.mark.parametrize(("name", "line"), [(n, line) for n in SECRETS for line in SECRETS[n]])
def test_a_password_of_a_line_that_is_quoted_is_not_printed(
    capsys: Capture, name: str, line: str
) -> None:
    forms = {
        "r.txt": "transformers==5.2.0\n{}\n",
        "environment.yml": "dependencies:\n- transformers=5.2.0\n- '{}'\n",
        "pyproject.toml": '[project]\ndependencies = ["transformers==5.2.0", "{}"]\n',
    }
    Path(name).write_text(forms[name].format(line))
    for format_ in ("text", "sarif"):
        main(["check", "-r", name, "--format", format_])
        printed = capsys.readouterr()
        assert "SECRET" not in printed.out + printed.err


@pytest.mark.parametrize("variable", ["PIP_INDEX_URL", *slow("UV_DEFAULT_INDEX", "UV_INDEX")])
@pytest.mark.parametrize("password", ["pa/SECRET", *slow("1/SECRET", "pa SECRET", "pa#SECRET")])
def test_a_password_of_an_index_that_uv_cannot_parse_is_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, variable: str, password: str
) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, f"https://user:{password}@127.0.0.1:9/simple")
    if variable == "UV_INDEX":
        monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    stack = file(tmp_path, "transformers>=5", "peft>=0.10")
    main(["check", "-r", stack, "--json"])
    printed = capsys.readouterr()
    assert "SECRET" not in printed.out + printed.err


@pytest.mark.parametrize("day", ["2025-13-45", "20250101", "tomorrow", "9999-01-01", "", "-1"])
def test_as_of_needs_a_day(tmp_path: Path, capsys: Capture, day: str) -> None:
    refused(capsys, ["check", "-r", file(tmp_path, "transformers"), f"--as-of={day}"])
