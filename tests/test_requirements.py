"""Requirements files are read, and nothing that they name is run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.spec import Inconclusive, UserError
from harness.upstream import pins, requirements

KNOWN = ["4.39.0", "4.38.2", "4.37.2", "4.36.2"]


@pytest.fixture(autouse=True)
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """What was looked up in an index, and with which options; there are KNOWN releases."""
    asked: list[tuple[str, tuple[str, ...]]] = []

    def versions(name: str, any_python: bool = False, index: Sequence[str] = ()) -> list[str]:
        asked.append((name, tuple(index)))
        return KNOWN

    monkeypatch.setattr(pins, "versions", versions)
    return asked


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "requirements.txt"


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ("up", "4.39.0"),
        ("Up[extra] >= 4.37, < 4.38", "4.37.2"),
        ("up~=4.36,!=4.39.0  # why", "4.38.2"),
        ("up==4.37.2 --hash=sha256:00 \\\n    --hash=sha256:11", "4.37.2"),
        ("up==4.38.*", "4.38.2"),
        ("up<4.38\nup>4.36.2", "4.37.2"),
        ("up; python_version >= '3'", "4.39.0"),
        ("--pre\n--only-binary=:all:\nup<4.37", "4.36.2"),
    ],
)
def test_a_line_means_the_newest_release_that_it_lets_through(
    file: Path, line: str, release: str
) -> None:
    file.write_text(f"# ours\n\nnumpy\n{line}\n")
    assert pins.required(file, ["up", "other"]) == {"up": release}


def test_what_is_for_another_python_is_not_required(file: Path) -> None:
    file.write_text("up; python_version < '3'\n")
    assert pins.required(file, ["up"]) == {}


def test_a_release_that_is_named_needs_no_index(
    file: Path, looked_up: list[tuple[str, tuple[str, ...]]]
) -> None:
    file.write_text("up==1.0\n")
    assert pins.required(file, ["up"]) == {"up": "1.0"}
    assert looked_up == []


def test_where_to_look_is_the_files_own_business(
    file: Path, looked_up: list[tuple[str, tuple[str, ...]]]
) -> None:
    file.write_text("--index-url=INDEX\n-f WHEELS\n--no-index\nup\n")
    assert pins.required(file, ["up"]) == {"up": "4.39.0"}
    assert looked_up == [("up", ("--index-url", "INDEX", "-f", "WHEELS", "--no-index"))]


def test_files_that_a_file_names_are_read_as_well(file: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    file.write_text("-r more/base.txt\n-c bounds.txt\n--requirement=more/base.txt\n")
    (tmp_path / "more" / "base.txt").write_text("-r ../requirements.txt\nup\n")
    (tmp_path / "bounds.txt").write_text("up<4.38\nother<2\n")
    assert pins.required(file, ["up", "other"]) == {"up": "4.37.2"}


@pytest.mark.parametrize(
    "line",
    [
        "up @ file:///tmp/up",
        "up @ git+https://host/up",
        "up @ https://host/up-1.0.tar.gz",
        "git+https://host/up",
        "https://host/up-1.0.tar.gz",
        "./up",
        "/tmp/up",
        "up-1.0.tar.gz",
        "-e .",
        "-e git+https://host/up",
        "--editable=up",
        "--install-option=x",
        "-r ../other.txt",
        "-r /etc/passwd",
        "-c https://host/bounds.txt",
        "-r nowhere.txt",
        "up=1.0",
        "up; python_version",
        '--index-url "x',
    ],
)
def test_what_names_no_releases_is_a_mistake_that_names_the_line(
    file: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(f"numpy\n{line}\n")
    file.parent.parent.joinpath("other.txt").write_text("up\n")
    assert main(["check", "scenario=rope_zero_init", "-r", str(file)]) == 2
    told = capsys.readouterr().err
    assert f"line 2: '{line}' is refused" in told
    assert told.count("\n") == 1


def test_a_range_with_nothing_in_it_is_a_mistake(file: Path) -> None:
    file.write_text("up>5,<6\n")
    with pytest.raises(UserError, match=r"no release is up.*they go from 4\.36\.2 to 4\.39\.0"):
        pins.required(file, ["up"])


def test_an_index_that_says_nothing_is_inconclusive(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("up\n")
    monkeypatch.setattr(pins, "versions", lambda *_, **__: [])
    with pytest.raises(Inconclusive, match="is there a network"):
        pins.required(file, ["up"])


def test_a_file_that_is_no_text_is_a_mistake(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00up")
    with pytest.raises(UserError, match="cannot read"):
        requirements.read(file)


def test_a_strangers_source_distribution_is_not_built(tmp_path: Path) -> None:
    """Its setup.py would write a file; where uv was asked what the line means, it did."""
    source, ran = tmp_path / "evil", tmp_path / "ran"
    source.mkdir()
    (source / "setup.py").write_text(
        f"open({str(ran)!r}, 'w').close()\n"
        "from setuptools import setup\nsetup(name='transformers', version='4.37.2')\n"
    )
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist"], cwd=source, check=True, capture_output=True
    )
    assert ran.exists(), "this would prove nothing"
    (packed,) = (source / "dist").iterdir()
    ran.unlink()
    file = tmp_path / "requirements.txt"
    for line in (
        f"transformers @ file://{packed}",
        f"transformers @ file://{source}",
        f"transformers>=4 \n-e {source}",
        f"--find-links {packed.parent}\n--no-index\n--no-binary :all:\ntransformers>=99",
    ):
        file.write_text(f"{line}\n")
        with pytest.raises(UserError):
            pins.required(file, ["transformers"])
        assert not ran.exists()
