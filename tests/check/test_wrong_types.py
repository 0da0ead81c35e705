"""A value of a wrong type, anywhere in any file that is read, is one line in plain English."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.check import resolver, solver
from harness.cli import check
from harness.system.errors import HarnessError

VALUES: tuple[Any, ...] = (5, "x", [], {}, None, True, [5], {"x": 5}, "%; (=")
PYTHON = re.compile(
    r"object has no|indices must be|NoneType|not iterable|unhashable|not subscriptable|unpack|"
    r"[a-z]Error\b|expected (str|string|at)|\bargument\b|\binstance\b|\bdict\b|\bstr\b|: '[\w-]+'$"
)
"""What only a programmer of Python says; a name in quotes alone is a KeyError."""
UV = {
    "version": 1,
    "revision": 3,
    "requires-python": ">=3.10",
    "resolution-markers": ["sys_platform == 'linux'"],
    "package": [
        {
            "name": "transformers",
            "version": "5.2.0",
            "source": {"registry": "https://host/simple"},
            "resolution-markers": ["sys_platform == 'linux'"],
            "dependencies": [{"name": "torch", "marker": "sys_platform == 'linux'"}],
        },
        {"name": "mine", "source": {"virtual": "."}},
    ],
}
POETRY = {
    "package": [
        {
            "name": "transformers",
            "version": "5.2.0",
            "groups": ["main"],
            "markers": {"main": "sys_platform == 'linux'"},
            "source": {"type": "legacy", "url": "https://host"},
        },
        {"name": "torch", "version": "2.9.0", "markers": "extra == 'x'", "develop": False},
    ],
    "metadata": {"lock-version": "2.1", "python-versions": ">=3.10", "content-hash": "a5"},
}
PDM = {
    "metadata": {"lock_version": "4.5.0", "groups": ["default"]},
    "package": [
        {"name": "transformers", "version": "5.2.0", "marker": "sys_platform == 'linux'"},
        {"name": "torch", "version": "2.9.0", "path": "./torch", "editable": True},
    ],
}
PYLOCK = {
    "lock-version": "1.0",
    "created-by": "us",
    "requires-python": ">=3.10",
    "packages": [
        {
            "name": "transformers",
            "version": "5.2.0",
            "marker": "sys_platform == 'linux'",
            "sdist": {"url": "https://host/transformers-5.2.0.tar.gz", "hashes": {"sha256": "a5"}},
        },
        {"name": "torch", "vcs": {"type": "git", "url": "https://host/t", "commit-id": "a5"}},
        {"name": "peft", "directory": {"path": "peft", "editable": True}},
        {"name": "trl", "archive": {"path": "trl-0.1.tar.gz", "hashes": {"sha256": "a5"}}},
    ],
}
PIPFILE_LOCK = {
    "_meta": {"hash": {"sha256": "a5"}, "sources": [{"url": "https://host"}]},
    "default": {"transformers": {"version": "==5.2.0", "markers": "sys_platform == 'linux'"}},
    "gpu": {"torch": {"git": "https://host/torch", "ref": "a5"}},
}
PROJECT = {
    "project": {
        "name": "ours",
        "requires-python": ">=3.10",
        "dynamic": ["version"],
        "dependencies": ["transformers==5.2.0", "ours[train]"],
        "optional-dependencies": {"train": ["torch==2.9.0"]},
    },
    "dependency-groups": {"dev": ["peft==0.1", {"include-group": "test"}], "test": ["trl"]},
    "tool": {
        "setuptools": {
            "dynamic": {
                "dependencies": {"file": ["a.txt"]},
                "optional-dependencies": {"docs": {"file": "b.txt"}},
            }
        },
        "uv": {
            "sources": {"transformers": [{"git": "https://host", "marker": "os_name == 'nt'"}]},
            "override-dependencies": ["transformers==5.2.0"],
            "constraint-dependencies": ["torch<3"],
            "dev-dependencies": ["trl"],
        },
    },
}
TOOLS = {
    "tool": {
        "poetry": {
            "name": "ours",
            "dependencies": {
                "python": "^3.9",
                "accelerate": "^1.0 || 1.1",
                "deepspeed": {
                    "version": ">=0.1",
                    "extras": ["fast"],
                    "python": "^3.9",
                    "platform": "linux",
                    "markers": "os_name == 'posix'",
                    "optional": True,
                },
                "peft": [{"git": "https://host/peft"}, {"path": "../peft", "python": "<3"}],
            },
            "extras": {"more": ["deepspeed"]},
            "group": {
                "one": {"dependencies": {"trl": "*"}, "include-groups": ["two"]},
                "two": {"optional": True, "dependencies": {"trl": "1.0"}},
            },
            "dev-dependencies": {"trl": "1.0"},
        },
        "rye": {"dev-dependencies": ["trl"]},
        "pdm": {"dev-dependencies": {"test": ["-e file:///x#egg=x", "trl"]}},
        "hatch": {"envs": {"test": {"dependencies": ["trl"], "extra-dependencies": ["trl"]}}},
        "flit": {"metadata": {"requires": ["torch"], "requires-extra": {"test": ["trl"]}}},
        "pixi": {"dependencies": {"pytorch": "2.1.*"}},
    }
}
PIPFILE = {
    "source": [{"url": "https://host"}],
    "packages": {"transformers": "==5.2.0", "torch": {"version": "*", "os_name": "== 'posix'"}},
    "dev-packages": {"trl": {"path": ".", "editable": True}},
    "requires": {"python_version": "3.11"},
}
CONDA = {
    "name": "ours",
    "channels": ["conda-forge"],
    "dependencies": ["python=3.10", "pytorch::pytorch=2.1", {"pip": ["transformers==5.2.0"]}],
}
CONDA_LIST = [{"name": "transformers", "version": "5.2.0", "channel": "conda-forge"}]
DEEPSPEED = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True, "loss_scale": 0},
    "bf16": {"enabled": False},
    "zero_optimization": {"stage": 2},
    "tensor_parallel": {"autotp_size": 2},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
}
TRAINER = {
    "output_dir": "out",
    "bf16": True,
    "fp16": False,
    "gradient_accumulation_steps": 4,
    "max_grad_norm": 1.0,
    "deepspeed": DEEPSPEED,
}
ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "num_processes": 2,
    "mixed_precision": "bf16",
    "deepspeed_config": {"zero_stage": 2, "deepspeed_config_file": ""},
    "megatron_lm_config": {
        "megatron_lm_tp_degree": 2,
        "megatron_lm_pp_degree": 1,
        "megatron_lm_use_distributed_optimizer": True,
    },
}
SETUP = {
    "metadata": {"name": "ours"},
    "options": {"python_requires": ">=3.8", "install_requires": "transformers==5.2.0"},
    "options.extras_require": {"train": "torch==2.9.0", "all": "file: a.txt"},
}
EXTRAS = {"pyproject.toml": "[train,dev,docs]", "tools/pyproject.toml": "[dev,more,one,two,test]"}
FILES: dict[str, tuple[str, Any]] = {
    "uv.lock": ("-r", UV),
    "poetry.lock": ("-r", POETRY),
    "pdm.lock": ("-r", PDM),
    "pylock.toml": ("-r", PYLOCK),
    "Pipfile.lock": ("-r", PIPFILE_LOCK),
    "conda.json": ("-r", CONDA_LIST),
    "pyproject.toml": ("-r", PROJECT),
    "tools/pyproject.toml": ("-r", TOOLS),
    "Pipfile": ("-r", PIPFILE),
    "environment.yml": ("-r", CONDA),
    "setup.cfg": ("-r", SETUP),
    "ds.json": ("--deepspeed", DEEPSPEED),
    "args.json": ("--training-args", TRAINER),
    "accelerate.yaml": ("--accelerate", ACCELERATE),
}


def changed(content: Any) -> Iterator[Any]:
    """The content with each of its nodes replaced by each value."""
    yield from VALUES
    for key in content if isinstance(content, dict) else ():
        for value in changed(content[key]):
            yield {**content, key: value}
    for number, entry in enumerate(content if isinstance(content, list) else ()):
        for value in changed(entry):
            yield [*content[:number], value, *content[number + 1 :]]


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)


def written(name: str, content: Any) -> str | None:
    """The text of a file; None if its format cannot have such a value."""
    if name == "setup.cfg":
        if not isinstance(content, dict) or not all(isinstance(s, dict) for s in content.values()):
            return str(content)
        lines = (
            "\n".join([f"[{n}]", *(f"{k} = {v}" for k, v in s.items())]) for n, s in content.items()
        )
        return "\n".join(lines)
    if name.endswith((".json", ".yml", ".yaml", "Pipfile.lock")):
        return json.dumps(content)
    if not isinstance(content, dict) or "null" in toml(content):
        return None
    return "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in content.items())


@pytest.fixture(autouse=True)
def _unresolved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No resolver is started: what it is given was read before."""
    monkeypatch.setattr(resolver, "_solve", lambda *_: solver.Solution())
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    Path("project/tools").mkdir(parents=True)
    for name in ("project/a.txt", "project/b.txt"):
        Path(name).write_text("torch==2.9.0\n")
    Path("up.txt").write_text("transformers==5.2.0\n")


def answer(words: list[str]) -> tuple[int, str]:
    """The exit code of ``check``, and its message if it has no answer."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return check.main(["scenario=label_smoothing_gas", *words]), ""
    except HarnessError as error:
        return error.exit_code, str(error)
    except Exception as error:
        return 3, f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_type_is_one_line(name: str) -> None:
    option, content = FILES[name]
    words = [
        option,
        f"project/{name}{EXTRAS.get(name, '')}",
        *([] if option == "-r" else ["-r", "up.txt"]),
    ]
    answers = set()
    for variant in changed(content):
        if (text := written(name, variant)) is not None:
            Path("project", name).write_text(text)
            answers.add(answer(words))
    assert (0, "") in answers or (1, "") in answers
    assert len(answers) > 2
    later = re.compile(r"has version \d+ of [\w.]+; only .* can be read")
    bad = [
        message
        for code, message in sorted(answers)
        if (code > 2 and not later.search(message)) or PYTHON.search(message) or "\n" in message
    ]
    assert not bad, "\n".join(bad)
