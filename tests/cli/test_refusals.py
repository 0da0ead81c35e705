"""A mistake in a command is one line with the choices, before anything is started."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from harness.releases import overlay_cache
from harness.system import documents, files
from harness.system.documents import json_of, toml_of, yaml_of
from tests.sandbox import refused

Capture = pytest.CaptureFixture[str]
NAMED = "pins.deepspeed"


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A thread is as good as a process; pip is not asked for its index."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", _refuse)
    monkeypatch.setattr(threading.Thread, "start", _refuse)


def _refuse(*words: object, **_: object) -> None:
    raise AssertionError(f"the command started {words}")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("run scenario=bf16_clip --cfg nope", "argument --cfg/-c: invalid choice: 'nope'"),
        ("probe --json own.py own.py --batch-size {rows}", "own.py is read: name another"),
        ("score own.py:Detector --json own.py", "own.py is read: name another"),
        ("models own.py:make --json own.py", "own.py is read: name another"),
        ("models config.json --json ./config.json", "config.json is read: name another"),
        ("watch --json h --history h", "h is written for another option"),
        ("run --info scenario=bf16_clip", "unrecognized arguments: --info"),
        ("run scenario=bf16_clip runs=/proc/x", "No such file or directory; name another runs="),
        ("run scenario=bf16_clip,sampler_shards runs=file", "several values need --multirun"),
        (
            "run scenario=bf16_clip variant=released,fixed",
            "variant=released,fixed: write several values as a list: variant=[released,fixed]",
        ),
        ("run scenario=sampler_shards patch=a,b", "as a list: patch=[a,b]"),
        (
            "run scenario=sampler_shards patch=nosuch.diff",
            "patch=nosuch.diff: there is no such file",
        ),
        (
            "run scenario=sampler_shards patch=folder",
            "patch=folder: cannot be read: Is a directory",
        ),
        ("run scenario=device_math patch=fix.diff", "device_math runs what is installed"),
        ("run scenario=deepspeed runs=file", "file/run: Not a directory; name another runs="),
        ("run scenario=bf16_clip --nope", "unrecognized arguments: --nope"),
        (f"probe {'a' * 5000}", "File name too long"),
        (f"guard-report {'a' * 5000}", "File name too long"),
        (f"grade {'a' * 5000}", "File name too long"),
        (f"score {'a' * 5000}:X", "File name too long"),
        ("evidence nowhere h200 --out new", "nowhere is not a run folder: it has no run.json"),
        ("evidence --import nan.json", "nan.json is not a file of evidence --out"),
        ("evidence", "name at least one run folder"),
        ("evidence h200x2", "name at least one run folder"),
        ("evidence --import absent", "absent is not a file"),
        ("evidence run h200x2 --import nan.json", "leave the runs and --out out"),
        ("evidence run h200x2 --out nan.json", "nan.json exists: name a new file"),
        ("bundle bf16_clip --out box --python ;x", "no Python ';x'. Choices: 3.10, 3.11"),
        ("bundle bf16_clip --out box --python 9.9", "no Python '9.9'"),
        ("bundle bf16_clip --out box --platform windows", "no platform 'windows'"),
        ("bundle bf16_clip --out /proc/x", "cannot write /proc/x"),
        ("bundle bf16_clip --out file", "file is not an empty folder"),
        ("site --out /proc/x", "cannot write /proc/x"),
        ("site --out s --history damaged.jsonl", "damaged.jsonl is damaged"),
        ("watch scenario=bf16_clip --history damaged.jsonl", "damaged.jsonl is damaged"),
        ("advisories --out /proc/x", "cannot write /proc/x"),
        ("watch --history folder", "folder is a folder: name a file"),
        ("watch --json nowhere/x", "no folder nowhere for x"),
        ("watch --summary nowhere/x.md", "no folder nowhere for x.md"),
        ("watch --history nowhere/h.jsonl", "no folder nowhere for h.jsonl"),
        ("watch scenario=nothing", "no scenario 'nothing'"),
        ("watch scenario=", "no scenario ''"),
        ("watch pins.deepspeed=0.13.2", "no override of watch 'pins.deepspeed'"),
        ("watch variant=all", "no override of watch 'variant'"),
        ("watch --multirun", "unrecognized arguments: --multirun"),
        ("watch lane=tpu", "Choices: auto, cpu, gpu"),
        ("confirm --count 0", "0: write a whole number from 1"),
        ("confirm --count 1e3", "1e3: write a whole number"),
        (f"confirm --count {'9' * 5000}", "write a whole number from 1"),
        ("matrix scenario=bf16_clip --json folder", "folder is a folder: name a file"),
        ("matrix scenario=bf16_clip --json nowhere/x", "no folder nowhere for x"),
        ("run scenario=bf16_clip seed=-1", "harness: seed=-1"),
        ("run --multirun scenario=bf16_clip jobs=0", "harness: jobs=0"),
        ("run scenario=all runs=", "harness: runs="),
        ("check scenario=bf16_clip date=9999-01-01", "harness: date=9999-01-01"),
        ("score samples --json nowhere/x", "no folder nowhere for x"),
        ("score samples on=slurm", "score runs on this machine: leave out on=slurm"),
        ("models nowhere.json", "no file nowhere.json: name a config.json"),
        ("models deep.json", "deep.json is no config.json of transformers"),
        ("models bad.json", "bad.json is not JSON: Expecting property name enclosed in"),
        (
            "models typeless.json",
            "typeless.json is no config.json of transformers: it has no model",
        ),
        ("models two.py:mak", "two.py: no function 'mak': did you mean make? Choices: make."),
        ("probe -m nosuchmodule {rows}", "there is no module nosuchmodule"),
        ("models llama --relations ", "--relations: name some of"),
        (
            "models llama --pins transformers=5.2.0 --pins transformers=5.3.0",
            "transformers is pinned twice, transformers=5.2.0 and transformers=5.3.0: leave one",
        ),
        ("probe --pins peft=1,2 --pins Peft=3,4 two.py", "peft is pinned twice, peft=1,2 and Peft"),
        ("models llama:nope", "no head 'nope'"),
        ("models llama --json nowhere/x", "no folder nowhere for x"),
        (f"show bf16_clip {NAMED}={'1' * 5000}", "is not a version"),
        (f"run scenario=bf16_clip {NAMED}={'1' * 5000}", "is not a version"),
        ("check -r nowhere.txt", "nowhere.txt"),
        ("check --python nowhere/python", "no interpreter nowhere/python"),
        ("check --python p -r f", "not allowed with argument"),
        ("check req.txt", "write -r req.txt"),
        ("check .", "write -r ."),
        ("check pins.deepspeed=0.1", "leave pins.deepspeed=0.1 out"),
        ("check scenario=rope_zero", "did you mean rope_zero_init?"),
        ("check seed=1", "seed=1 has an effect only with --run"),
        ("check --unknown", "--unknown has an effect only with --run"),
        ("check --as-of 2025-01-01", "--as-of has an effect only with -r"),
        ("check --as-of 2025-01-01 --python p", "--as-of has an effect only with -r"),
        ("check --deepspeed nowhere.json", "no file nowhere.json"),
        ("check --format xml", "no format 'xml'. Choices: text, json, github, sarif, markdown"),
        ("check --format json --format github", "write github:FILE"),
        ("check --json --format text", "write json:FILE"),
        ("check --model nowhere.json", "harness: no file nowhere.json"),
        ("check --model wordless.json", "wordless.json is no config.json of transformers"),
        ("check --format sarif:nowhere/a", "nowhere"),
        ("check --format text:a", "text is printed"),
        ("check --accelerate bomb.yaml", "its aliases describe too many values"),
        ("check -r merged.yml", "its aliases describe too many values"),
        ("check -r int.yml", "a value does not fit its tag (IndexError)"),
        ("check -r bool.yml", "a value does not fit its tag (KeyError)"),
        ("check -r day.yml", "a value does not fit its tag (AttributeError)"),
        ("check -r pylock.toml", "nested more than 50 deep"),
        ("check -r asks.txt --format json:asked.txt", "asked.txt is read: name another"),
        ("check -r asks.txt --format json:distributed-bugs.toml", "bugs.toml is read: name"),
        ("check --accelerate deep.yaml", "nested more than 50 deep"),
        ("check --deepspeed deep.json", "nested more than 50 deep"),
        ("check --deepspeed nan.json", "it contains NaN, which is not a number"),
        ("check --deepspeed infinite.json", "it contains 1e999, which is not a number"),
        ("check --accelerate nan.yaml", "it contains nan, which is not a number"),
        ("check --accepted deep.toml", "nested more than 50 deep"),
        ("check -r pyproject.toml[", "no file pyproject.toml["),
    ],
)
def test_a_mistake_is_refused_at_once(
    tmp_path: Path, capsys: Capture, words: str, why: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    deep = "[" * 99 + "]" * 99
    for name, text in {
        "own.py": "def make(): ...\n",
        "config.json": '{"model_type": "llama"}',
        "bomb.yaml": f"a0: &a0 [{'1,' * 2000}]\n"
        + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 11)),
        "merged.yml": f"a0: &a0 {{{''.join(f'k{n}: 1,' for n in range(2000))}}}\n"
        + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 11))
        + "dependencies: [pytorch=2.1]\n",
        "int.yml": 'name: !!int ""\ndependencies: [pytorch=2.1]\n',
        "bool.yml": 'name: !!bool "x"\ndependencies: [pytorch=2.1]\n',
        "day.yml": 'name: !!timestamp "x"\ndependencies: [pytorch=2.1]\n',
        "pylock.toml": ".".join(['"\\""'] * 60_000) + " = 1\n",
        "asks.txt": "--no-index\n-r asked.txt\n",
        "asked.txt": "transformers==5.2.0\n",
        "distributed-bugs.toml": "",
        "deep.yaml": f"a: {deep}",
        "deep.json": f'{{"a": {deep}}}',
        "deep.toml": f"a = {deep}",
        "nan.json": '{"gradient_clipping": NaN}',
        "infinite.json": '{"gradient_clipping": 1e999}',
        "damaged.jsonl": "{bad",
        "bad.json": "{",
        "typeless.json": "{}",
        "wordless.json": '{"model_type": ["x"]}',
        "two.py": "def make():\n    pass\n",
        "nan.yaml": "num_processes: .nan",
        "fix.diff": "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n",
    }.items():
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    assert why in refused(capsys, words.split(" "))
    assert sorted(tmp_path.rglob("*")) == before, "something was left"


@pytest.mark.parametrize("words", ["check", "run scenario=bf16_clip"])
def test_a_deleted_working_folder_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: str
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert (
        refused(capsys, words.split())
        == "harness: the working folder was deleted: change to another one\n"
    )


@pytest.mark.parametrize("read", [json_of, yaml_of, toml_of])
def test_a_text_has_a_limit_of_size(read: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LARGEST", 5)
    assert callable(read)
    with pytest.raises(ValueError, match="more than 5 characters"):
        read('{"a": 1}')


def test_json_has_a_limit_of_digits() -> None:
    assert json_of(f'{{"a": {"9" * 300}}}')["a"] > 0
    with pytest.raises(ValueError, match="more than 300 digits"):
        json_of("9" * 5000)


def test_numbers_in_other_notations_have_a_limit_of_digits() -> None:
    assert toml_of(f"a = 0x{'f' * 200}")["a"] > 0
    for number in (f"0x{'f' * 5000}", "9" * 5000):
        for read, text in ((toml_of, f"a = {number}"), (yaml_of, f"a: {number}")):
            with pytest.raises(ValueError, match="more than 300 digits"):
                read(text)


@pytest.mark.parametrize("part", ["a", "'b c'", '"d"'])
def test_a_key_of_many_parts_is_refused_at_once(part: str) -> None:
    """tomllib takes hours for 100,000 parts, and gigabytes for many keys of 1,000."""
    with pytest.raises(ValueError, match="nested more than 50 deep"):
        toml_of(" . ".join([part] * 100_000) + " = 1")
    assert toml_of("x = 1\n" + ".".join([part] * 49) + " = 1")["x"] == 1
    assert len(toml_of(f"a = '{'b' * 1_000_000}'")["a"]) == 1_000_000


def test_a_linked_overlay_is_freed_without_what_it_links_to(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("mine")
    (tmp_path / "cache" / "overlays").mkdir(parents=True)
    (tmp_path / "cache" / "overlays" / "linked").symlink_to(elsewhere)
    assert overlay_cache.delete(tmp_path / "cache", "linked") == ["linked"]
    assert (elsewhere / "mine").read_text() == "mine"
    assert not (tmp_path / "cache" / "overlays" / "linked").is_symlink()


def test_a_file_is_tried_before_it_is_needed(tmp_path: Path) -> None:
    files.refuse_unless_writable(tmp_path / "new")
    files.refuse_unless_creatable(tmp_path / "a" / "b" / "c")
    assert list(tmp_path.iterdir()) == []
