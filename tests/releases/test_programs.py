"""Programs that we start for a user's files: where they run, what they get, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.releases import index, uv
from harness.system import programs
from tests.index import Handler, file, page, served

__all__ = ["served"]

ASK = """
from harness.releases import uv
uv.execute(["pip", "compile", "-", "--no-build"], "up", lists={"--override": ["down"]})
"""


def test_a_program_takes_nothing_from_the_folder_or_an_active_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_CACHE_DIR", "relative")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    options = programs.options(MORE="1")
    assert options["cwd"] == "/"
    assert options["env"]["UV_CACHE_DIR"] == str(tmp_path / "relative"), "as the user meant it"
    assert options["env"]["MORE"] == "1"
    assert not {"VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON"} & set(options["env"])


def test_uv_asks_the_index_of_pips_configuration_if_it_has_none_of_its_own(
    served: type[Handler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A company's package names are not for the public index."""
    address = os.environ["PIP_INDEX_URL"]
    for variable in ("UV_DEFAULT_INDEX", "UV_CONFIG_FILE", "XDG_CONFIG_DIRS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    uv.execute(["pip", "compile", "-"], "by-variable")
    monkeypatch.delenv("PIP_INDEX_URL")
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "pip.conf").write_text(f"[global]\nindex-url = {address}\n")
    uv.execute(["pip", "compile", "-"], "by-file")
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv.toml").write_text(f'index-url = "{address}/of-uv"\n')
    uv.execute(["pip", "compile", "-"], "own")
    paths = ["/simple/by-variable/", "/simple/by-file/", "/simple/of-uv/own/"]
    assert served.requests == paths


def test_uv_ends_with_us_and_leaves_no_file(served: type[Handler], tmp_path: Path) -> None:
    """SIGKILL leaves us no time to clean up."""
    served.pages["up"], served.slow = page(), 30.0
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "UV_CACHE_DIR": str(tmp_path / "uv")}
    ours = subprocess.Popen([sys.executable, "-c", ASK], env=environment)
    try:
        (uv,) = _wait_for(lambda: psutil.Process(ours.pid).children())
        ours.send_signal(signal.SIGKILL)
        ours.wait()
        _wait_for(lambda: not uv.is_running() or uv.status() == psutil.STATUS_ZOMBIE)
    finally:
        served.slow = 0.0
        ours.kill()
    assert list(temporary.iterdir()) == []


def _wait_for(condition):  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while not (answer := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return answer


def test_uv_does_not_ask_again_for_a_file_of_the_public_index(
    served: type[Handler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A proxy that leaves out how long files are valid cost 400 requests, and 10 s."""
    address = os.environ["PIP_INDEX_URL"]
    for variable in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL", "XDG_CONFIG_DIRS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "public", lambda: address)
    wheel = "up-1.0-py3-none-any.whl"
    served.pages["up"] = page(file(wheel) | {"core-metadata": True})
    served.pages[f"up/{wheel}.metadata"] = "Metadata-Version: 2.1\nName: up\nVersion: 1.0\n\n"
    for _ in range(2):
        process = uv.execute(["pip", "compile", "-", "--only-binary", ":all:"], "up", needs={})
        assert "up==1.0" in process.stdout, process.stderr
    metadata = [path for path in served.requests if path.endswith(".metadata")]
    assert len(metadata) == 1
    served.requests.clear()
    uv.execute(["pip", "compile", "-", f"--default-index={address}/own"], "up", needs={})
    assert served.requests == ["/simple/own/up/"], "a name in a user's file is for its index alone"
