"""Requirements files are read; nothing that they name is run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from harness.check import project_folders, requirements, synonyms
from harness.check.formats import Listing
from harness.check.installed import Exact, NewestOf
from harness.check.source import read_file
from harness.system.errors import UserError
from harness.system.text import warn_once
from tests.check.requirement_files import check_refused, content_of, file, known, required, selected
from tests.index import Handler, page, served
from tests.index import file as file_of
from tests.sandbox import refused

__all__ = ["file", "known", "served"]


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
        ("up; python_version < '3'", None),
        ("--pre\n--only-binary=:all:\nup<4.37", "4.36.2"),
        ("up==4.37.2 --no-binary qudida,up", "4.37.2"),
        ("up<4.38 --pre --extra-index-url https://nowhere.invalid/cu118", "4.37.2"),
        ("up==4.37.2 ; python_version >= '3' -i 'https://nowhere.invalid'", "4.37.2"),
    ],
)
def test_a_line_selects_the_newest_release_that_it_allows(
    file: Path, line: str, release: str | None
) -> None:
    file.write_text(f"# ours\n\nnumpy\n{line}\n")
    assert required(file, ["up", "other"]) == ({"up": release} if release else {})


def test_only_a_range_needs_an_index(file: Path, served: type[Handler]) -> None:
    file.write_text("--no-index\nup==1.0\n")
    assert required(file, ["up"]) == {"up": "1.0"}
    assert served.requests == []
    check_refused(file, "--no-index\nup>4\n", r"--no-index: no index can list .* as up==1\.2\.3")


@pytest.mark.parametrize(
    ("options", "newest"),
    [
        ("--index-url={0}/mine/", "6.0.0"),
        ("-i {0}/mine", "6.0.0"),
        ("--index-url ${{ROOT}}/${{MINE_2}}", "6.0.0"),
        ("-i '${{ROOT}}/mine' --extra-index-url ${{ROOT}}/simple", "6.0.0"),
        ("--extra-index-url '{0}/mine'", "6.0.0"),
        ("-i {0}/mine\n--extra-index-url {0}/simple", "6.0.0"),
        ("--extra-index-url {0}/others --extra-index-url {0}/others", "4.39.0"),
    ],
)
def test_the_file_may_name_the_index(
    file: Path, served: type[Handler], monkeypatch: pytest.MonkeyPatch, options: str, newest: str
) -> None:
    """Also with variables, as pip allows it: so the password of an index is not in the file."""
    served.pages |= {"mine/up": page(file_of("up-6.0.0.tar.gz")), "others/up": 404}
    root = os.environ["UV_DEFAULT_INDEX"].removesuffix("/simple")
    monkeypatch.setenv("ROOT", root)
    monkeypatch.setenv("MINE_2", "mine")
    file.write_text(f"{options.format(root)}\nup\n")
    assert required(file, ["up"]) == {"up": newest}


def test_a_folder_of_files_is_ignored_with_a_warning(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("--find-links wheels\nup\n")
    warn_once.cache_clear()
    assert required(file, ["up"]) == {"up": "4.39.0"}
    assert "--find-links is ignored" in capsys.readouterr().err


def test_files_that_a_file_names_are_read_as_well(file: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    file.write_text("-r more/base.txt\n-c bounds.txt\n--requirement=more/base.txt\n")
    (tmp_path / "more" / "base.txt").write_text("-r ../requirements.txt\nup\n")
    (tmp_path / "bounds.txt").write_text("up<4.38\nother<2\n")
    assert required(file, ["up", "other"]) == {"up": "4.37.2"}


REFUSED = """\
--install-option=x
-r ../other.txt
-r /etc/passwd
-c https://host/bounds.txt
-r nowhere.txt
up=1.0
up; python_version
./up; python_version
--index-url "x
--index-url https://host/${NOWHERE}/simple
--index-url
--extra-index-url http://host/simple ./up
--pre ./up
--trusted-host
-r ""
-e ""
up -r other.txt
up==4.36.2 --from https://host/cu118
up[fast] >=4 ./cu118
up --extra-index-url
up===nightly
# Editable install with no version control (-r==1.0)"""


@pytest.mark.parametrize("line", REFUSED.splitlines())
def test_a_line_that_names_no_package_is_a_mistake(file: Path, line: str) -> None:
    file.parent.parent.joinpath("other.txt").write_text("up\n")
    check_refused(file, f"numpy\n{line}\n", re.escape(f"line 2: '{line}' is refused"))


NESTED = """\
-r "a b.txt"
-r 'a b.txt'
-ra\\ b.txt
--requirement="a b.txt"
--trusted-host host -r "a b.txt"
-c "a b.txt" --pre
up==4.36.2 --config-settings "a=b c"
up==4.36.2 --config-setting='a=b c' --hash=sha256:00 -C "x=y"
up==4.36.2 --global-option="--a \\" b" """


@pytest.mark.parametrize("line", NESTED.splitlines())
def test_options_are_split_as_a_shell_does(file: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "a b.txt").write_text("up==4.36.2\n")
    file.write_text(f"numpy\n{'up' * line.startswith('-c')}\n{line}\n")
    assert required(file, ["up"]) == {"up": "4.36.2"}


@pytest.mark.parametrize(
    "text",
    [
        "./" + "[" * 200_000 + "x",
        "up; " + "(" * 20_000,
        "up; " + "(" * 3_000,
        "up" + ",".join(f"!=1.{n}" for n in range(30_000)),
        "".join(f"up!=1.{n}\n" for n in range(30_000)),
        "up===" + "a" * 9_000,
        "up==1.0a" + "9" * 200 + "\n" + "up==" + "1." * 1_000 + "1",
        "-r " + "n" * 300 + ".txt",
        "-c " + "n/" * 1_500,
        "up=" + "n" * 3_000,
        "-e " + "[" * 3_000 + ";" + "x" * 900,
        "--index-url " + "x" * 3_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_long_line_is_refused_in_a_short_one(file: Path, text: str) -> None:
    file.write_text(f"numpy\n{text}\n")
    with pytest.raises(UserError, match=r"refused|contradict") as caught:
        required(file, ["up"])
    assert len(str(caught.value)) < 700
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["folder", "loop", "fifo", "gone"])
def test_a_line_names_a_file(file: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    check_refused(file, f"-r {name}", f"line 1: '-r {name}' is refused: it is no file")


@pytest.mark.parametrize(
    ("line", "version", "origin"),
    [
        ("up @ file:///tmp/anything", "", "a local folder"),
        ("up @ git+https://host/anything@main", "", "installed from git"),
        ("up @ https://host/anything.zip", "", "a file from the web"),
        ("up @ https://host/up-4.36.2%2Bcu121-py3-none-any.whl", "4.36.2", "a file from the"),
        ("up @ file:///home/conda/feedstock_root/build_artifacts/up_17/work", "", "built by conda"),
        ("git+https://host/us/Up.git@refs/pull/1/head", "", "installed from git"),
        ("up @ git+https://github.com/us/up@v4.36.2", "4.36.2", ""),
        ("git+ssh://git@github.com/Us/Up.git@v4.36.2", "4.36.2", ""),
        ("up @ git+https://github.com/us/up@refs/tags/v4.36.2", "4.36.2", ""),
        ("up @ https://github.com/us/up/archive/refs/tags/v4.36.2.tar.gz", "4.36.2", ""),
        ("up @ git+https://github.com/us/up@main", "", "installed from git"),
        ("up @ git+https://github.com/us/up@v4.36-release", "", "installed from git"),
        ("up @ git+https://github.com/us/up", "", "installed from git"),
        ("up @ git+https://github.com/me/up@v4.36.2", "", "installed from git"),
        ("up @ git+https://a.example/github.com/us/up@v4.36.2", "", "installed from git"),
        ("up @ git+https://github.com.a.example/us/up@v4.36.2", "", "installed from git"),
        ("up @ git+file:///home/me/github.com/us/up@v4.36.2", "", "installed from git"),
        ("up @ git+ssh://git@a.example/github.com/us/up@v4.36.2", "", "installed from git"),
        ("up @ https://a.example/github.com/us/up/archive/v4.36.2.zip", "", "a file from the"),
        ("up @ git+https://me:key@github.com/us/up@v4.36.2", "4.36.2", ""),
        ("-e . # of us \\\nup==4.36.2\n# the \\\nup==4.37.2", "4.37.2", ""),
        ("up @ git+https://host/us/up@v4.36.2", "", "installed from git"),
        ("hg+https://host/anything#egg=up&subdirectory=python", "", "installed from hg"),
        ("https://host/up-4.36.2.tar.gz", "4.36.2", "a file from the"),
        ("https://github.com/us/up/archive/refs/heads/main.zip", "", "a file from the"),
        ("./more/up[extra] ; python_version > '3'", "", "a local folder"),
        ("/tmp/up", "", "a local folder"),
        ("up-4.36.2.tar.gz", "4.36.2", "a local file"),
        ("-e more/up", "", "an editable install"),
        ("-e git+https://host/up", "", "an editable install"),
        ("# Editable Git install with no remote (up==4.36.2)\n-e /tmp/fork", "4.36.2", "an editab"),
        ("# Editable install with no version control (up===4)\n-e /tmp/up", "4", "an editable"),
        ("https://github.com/me/up/archive/v4.49.0-Gemma-3.zip", "", "a file from the"),
        ("https://github.com/me/up/archive/refs/tags/v4.36.2-3.tar.gz", "", "a file from the"),
        ("https://github.com/me/up/archive/release-4.36.2.tar.gz", "", "a file from the"),
        ("https://github.com/me/up/zipball/v4.36.2", "", "a file from the"),
        ("https://codeload.github.com/me/up/tar.gz/refs/tags/v4.36.2", "", "a file from the"),
        ("https://codeload.github.com/me/up/legacy.zip/main", "", "a file from the"),
        ("https://api.github.com/repos/me/up/tarball/main", "", "a file from the"),
        (
            "https://gitlab.com/group/me/up/-/archive/main/other-4.36.2.zip",
            "",
            "a file from the web",
        ),
        ("https://bitbucket.org/me/up/get/other-4.36.2.zip", "", "a file from the"),
        ("up @ https://github.com/us/fork/archive/v4.49.0-Gemma-3.zip", "", "a file from the"),
        ("up @ https://host/v4.49.0-Gemma-3.zip", "", "a file from the"),
        ("up @ https://host/other-4.36.2.tar.gz", "", "a file from the"),
        ("up @ file:///tmp/other-4.36.2-py3-none-any.whl", "", "a local file"),
        (
            "https://github.com/me/up/releases/download/v4/up-4.36.2-py3-none-any.whl",
            "4.36.2",
            "a file from the web",
        ),
        (
            "https://github.com/me/up/archive/refs/tags/up-4.36.2.tar.gz",
            "4.36.2",
            "a file from the web",
        ),
        ("https://host/a/b/archive/up-4.36.2-py3-none-any.whl", "4.36.2", "a file from the web"),
        ("https://host/simple/up/up-4.36.2.zip", "4.36.2", "a file from the web"),
        ("up @ https://host/up-4.36.2.zip", "4.36.2", "a file from the web"),
        ("-e './my folder/up[a]'", "", "an editable install"),
    ],
)
def test_a_package_from_elsewhere_has_an_origin_and_perhaps_a_version(
    file: Path, line: str, version: str, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(synonyms.UPSTREAM, "us/up", "up")
    file.write_text(f"numpy\n{line}\n")
    package = selected(file)
    assert package
    assert package.version == version
    assert package.origin.startswith(origin)
    assert bool(package.origin) == bool(origin)
    assert "other" not in content_of(file).direct


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("up==4.36.2", "up==4.37.2"),
        ("up==4.36.2", "up>4.37"),
        ("up==4.36.2", "./up-4.37.2.tar.gz"),
        ("up==4.36.2", "-c bounds.txt"),
    ],
)
def test_files_that_contradict_each_other_are_a_mistake(
    file: Path, tmp_path: Path, served: type[Handler], first: str, second: str
) -> None:
    second_file = tmp_path / "other.txt"
    file.write_text(first)
    second_file.write_text(f"# ours\n{second}\n")
    (tmp_path / "bounds.txt").write_text("up==4.37.2")
    with pytest.raises(UserError, match=r"contradict each other$") as caught:
        selected(file, second_file)
    assert f"up==4.36.2 ({file}, line 1)" in str(caught.value)
    assert served.requests == []


def test_several_files_are_read_as_one(file: Path, tmp_path: Path) -> None:
    second_file = tmp_path / "other.txt"
    file.write_text("up>4.36\n")
    second_file.write_text("up<4.38\nup!=4.37.0\n")
    package = selected(file, second_file)
    assert package == NewestOf("4.37.2", "up!=4.37.0,<4.38,>4.36")
    file.write_text("up==2.5.1\n")
    second_file.write_text("up==2.5.1+cu121\n")
    assert selected(file, second_file) == Exact("2.5.1")


def test_an_empty_range_is_a_mistake(file: Path) -> None:
    range_ = r"no release is up.[56] \(.*line 1\) and up.*they go from 4\.35\.0 to 4\.39\.0"
    check_refused(file, "up>5,<6\n", range_)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_a_file_is_read_in_its_encoding_as_pip_does(file: Path, encoding: str) -> None:
    """PowerShell's ``pip freeze > requirements.txt`` writes UTF-16."""
    mark = "\ufeff" if encoding.endswith("be") else ""
    file.write_bytes(f"{mark}# größer\r\nup==4.37.2\r\n".encode(encoding))
    assert required(file, ["up"]) == {"up": "4.37.2"}


def test_a_file_without_an_end_is_refused(file: Path) -> None:
    file.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="it has more than 20,000,000 bytes"):
        read_file(file)


def test_files_that_include_each_other_endlessly_are_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1500):
        (tmp_path / f"{number}.txt").write_text(f"-r {number + 1}.txt\n")
    (tmp_path / "1500.txt").write_text("transformers==4.37.2\n")
    assert "more than 50 files include each other" in refused(
        capsys, ["check", "scenario=rope_zero_init", "-r", str(tmp_path / "0.txt")]
    )


LONG: dict[str, Callable[[int], str]] = {
    "many.txt": lambda n: "up==4.37.2\n" * 9 * n,
    "hashes.txt": lambda n: "up==4.37.2" + f" \\\n --hash=sha256:{'0' * 64}" * 9 * n,
    "options.txt": lambda n: "up==4.37.2 " + "--hash=\\ " * n + '"\n',
    "words.txt": lambda n: "up==4.37.2 " + "-C a=\\  " * n + "\n",
    "pyproject.toml": lambda n: '[project]\ndescription = "' + '\\"' * 9 * n + '"\n',
    "more/pyproject.toml": lambda n: "x = " + "'''" + '"a.b' * n + "\n",
    "setup.cfg": lambda n: f"[x]\na{' ' * 9 * n}b\n",
    "whole.yml": lambda n: f"dependencies: []\nx: 1{':10' * 9 * n}\n",
    "float.yml": lambda n: f"dependencies: []\nx: 1{':10' * 9 * n}.5\n",
    "tag.yml": lambda n: f"dependencies: []\nx: !!int '1{':10' * 9 * n}'\n",
    "uv.lock": lambda n: (
        'version = 1\n[[package]]\nname = "up"\nversion = "1"\n'
        f'source = {{git = "https://github.com{":" * 9 * n}"}}\n'
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_file_is_read_in_linear_time(tmp_path: Path, name: str) -> None:
    """CPU time is compared with that of a shorter file, so that a slow machine changes nothing."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)

    def seconds(size: int) -> float:
        path.write_text(LONG[name](size))
        started = time.process_time()
        with suppress(UserError):
            file = project_folders.opened(str(path)).source
            file.packages() if isinstance(file, Listing) else requirements.read([file])
        return time.process_time() - started

    short = min(seconds(500) for _ in range(3))
    assert min(seconds(4_000) for _ in range(2)) < 24 * short  # 8 when linear, 64 when quadratic
