"""A bundle, made here and used as on a box without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.__main__ import main

USE = """\
set -eu
python3() {{ {python} "$@"; }}
. {bundle}/activate
cd {elsewhere}
python3 -W ignore -m harness run scenario=tied_grad_reduce launch=cpu runs={elsewhere}/runs
"""


@pytest.mark.launch
def test_what_a_bundle_holds_is_enough_to_run_a_scenario(tmp_path: Path) -> None:
    bundle, elsewhere = tmp_path / "bundle", tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert main(["bundle", "tied_grad_reduce", "--out", str(bundle)]) == 0
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("HARNESS", "PYTHON"))},
        "UV_OFFLINE": "1",
        "HARNESS_CACHE": str(tmp_path / "cache"),
    }
    script = USE.format(python=sys.executable, bundle=bundle, elsewhere=elsewhere)
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tied_grad_reduce: reproduced" in done.stdout
    assert not list(bundle.glob(".unpacked"))
    again = main(["bundle", "tied_grad_reduce", "--out", str(bundle)])
    assert again == 2, "a bundle that is there was overwritten"
