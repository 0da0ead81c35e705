"""Requirements files are read, and nothing that they name is run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.errors import Inconclusive, UserError
from harness.text import warn_once
from harness.upstream import requirements
from tests.index import Handler, address, page, serving
from tests.index import file as file_of

KNOWN = ["4.39.0", "4.38.2", "4.37.2", "4.36.2"]


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Handler]]:
    """An index with KNOWN releases, one for another Python, one yanked, and a preview."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("UV_OFFLINE", raising=False)
    with serving() as server:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address(server))
        Handler.pages["up"] = page(
            *(file_of(f"up-{version}.tar.gz", None) for version in KNOWN),
            file_of("up-4.40.0.tar.gz", None) | {"requires-python": ">=3.99"},
            file_of("up-4.41.0.tar.gz", None, "it was broken"),
            file_of("up-5.0.0rc1.tar.gz", None),
            file_of("up-4.35.0.tar.gz", None) | {"requires-python": ">=3.*, nonsense"},
        )
        yield Handler


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
    assert requirements.required(file, ["up", "other"]) == {"up": release}


def test_what_is_for_another_python_is_not_required(file: Path) -> None:
    file.write_text("up; python_version < '3'\n")
    assert requirements.required(file, ["up"]) == {}


def test_a_release_that_is_named_needs_no_index(file: Path, served: type[Handler]) -> None:
    file.write_text("--no-index\nup==1.0\n")
    assert requirements.required(file, ["up"]) == {"up": "1.0"}
    assert served.asked == []


@pytest.mark.parametrize(
    ("options", "newest"),
    [
        ("--index-url={0}/mine/", "6.0.0"),
        ("-i {0}/mine", "6.0.0"),
        ("--extra-index-url '{0}/mine'", "6.0.0"),
        ("-i {0}/mine\n--extra-index-url {0}/simple", "6.0.0"),
        ("--extra-index-url {0}/others --extra-index-url {0}/others", "4.39.0"),
    ],
)
def test_where_to_look_is_the_files_own_business(
    file: Path, served: type[Handler], options: str, newest: str
) -> None:
    served.pages["mine/up"] = page(file_of("up-6.0.0.tar.gz", None))
    served.pages["others/up"] = 404
    root = os.environ["UV_DEFAULT_INDEX"].removesuffix("/simple")
    file.write_text(f"{options.format(root)}\nup\n")
    assert requirements.required(file, ["up"]) == {"up": newest}


def test_a_folder_of_files_is_not_looked_at_and_that_is_said(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("--find-links wheels\nup\n")
    warn_once.cache_clear()
    assert requirements.required(file, ["up"]) == {"up": "4.39.0"}
    assert "--find-links is ignored" in capsys.readouterr().err


def test_a_range_needs_an_index_to_ask(file: Path) -> None:
    file.write_text("--no-index\nup>4\n")
    with pytest.raises(
        UserError, match=r"--no-index: no index can list .* name one, such as up==1\.2\.3"
    ):
        requirements.required(file, ["up"])


def test_files_that_a_file_names_are_read_as_well(file: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    file.write_text("-r more/base.txt\n-c bounds.txt\n--requirement=more/base.txt\n")
    (tmp_path / "more" / "base.txt").write_text("-r ../requirements.txt\nup\n")
    (tmp_path / "bounds.txt").write_text("up<4.38\nother<2\n")
    assert requirements.required(file, ["up", "other"]) == {"up": "4.37.2"}


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
        "--index-url",
        "--extra-index-url http://host/simple ./up",
    ],
)
def test_what_names_no_releases_is_a_mistake_that_names_the_line(file: Path, line: str) -> None:
    file.write_text(f"numpy\n{line}\n")
    file.parent.parent.joinpath("other.txt").write_text("up\n")
    with pytest.raises(UserError) as caught:
        requirements.required(file, ["up"])
    assert f"line 2: '{line}' is refused" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_range_with_nothing_in_it_is_a_mistake(file: Path) -> None:
    file.write_text("up>5,<6\n")
    with pytest.raises(UserError, match=r"no release is up.*they go from 4\.35\.0 to 4\.39\.0"):
        requirements.required(file, ["up"])


def test_an_index_that_does_not_answer_is_inconclusive(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("up\n")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    with pytest.raises(Inconclusive, match="the package index does not respond"):
        requirements.required(file, ["up"])


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_a_file_is_read_in_the_encoding_that_it_says_as_pip_does(file: Path, encoding: str) -> None:
    """PowerShell's ``pip freeze > requirements.txt`` writes UTF-16."""
    mark = "\ufeff" if encoding.endswith(("le", "be")) else ""
    file.write_bytes(f"{mark}# größer\r\nup==4.37.2\r\n".encode(encoding))
    assert requirements.required(file, ["up"]) == {"up": "4.37.2"}


def test_files_that_name_each_other_without_end_are_a_mistake(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1500):
        (tmp_path / f"{number}.txt").write_text(f"-r {number + 1}.txt\n")
    (tmp_path / "1500.txt").write_text("transformers==4.37.2\n")
    assert main(["check", "scenario=rope_zero_init", "-r", str(tmp_path / "0.txt")]) == 2
    told = capsys.readouterr().err
    assert "more than 50 files include each other" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    ["up==4.37.2\n" * 40_000, "up==4.37.2 \\\n" + f"    --hash=sha256:{'0' * 64} \\\n" * 100_000],
    ids=["the same line", "hashes"],
)
def test_the_work_that_a_long_file_makes_grows_with_its_length(file: Path, text: str) -> None:
    file.write_text(text)
    started = time.process_time()
    assert requirements.required(file, ["up"]) == {"up": "4.37.2"}
    assert time.process_time() - started < 4  # CPU seconds: 0.5; it was 5, and 24


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
            requirements.required(file, ["transformers"])
        assert not ran.exists()
