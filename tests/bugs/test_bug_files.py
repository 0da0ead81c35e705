"""What is known of a bug is data, which others can read without our code."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields

import pytest
import tomli

from harness.bugs import catalog
from harness.bugs.api.knobs import Knob
from harness.bugs.api.spec import Absent, Companion, Defect, Scenario, Variant
from harness.bugs.bug_file import FILE
from tests.schemas import SCHEMAS, complaints

SCHEMA = "bug.json"


def test_each_file_has_the_public_schema() -> None:
    for name in catalog.names():
        content = tomli.loads((catalog.folder(name) / FILE).read_text())
        assert complaints(SCHEMA, content) == [], name


def test_the_schema_has_the_keys_that_are_read() -> None:
    bug = json.loads((SCHEMAS / SCHEMA).read_text())
    parts = {
        "params": Knob,
        "variants": Variant,
        "defects": Defect,
        "companions": Companion,
        "absent": Absent,
        "present": Absent,
    }
    for part, kind in parts.items():
        table = bug["properties"][part]
        keys = table.get("additionalProperties", table.get("items"))["properties"]
        assert set(keys) == {field.name for field in fields(kind)} - {"name"}, part
    ours = {field.name for field in fields(Scenario)} - {"knobs", "locks"}
    assert set(bug["properties"]) == ours | {"params", "defects"}


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--json"],
        ["show", "trainer_gas_twice"],
        ["check", "--strict", "transformers==5.2.0"],
        ["advisories"],
        ["guard", "--check-only", "true"],
    ],
    ids=" ".join,
)
def test_commands_that_run_nothing_import_no_scenario(words: list[str]) -> None:
    code = (
        "import sys; from harness.__main__ import main; import harness.cli.show as show;"
        "show._print_upstream = lambda *_: None; main(sys.argv[1:]);"
        "print([m for m in sys.modules if m.startswith('scenarios.')], file=sys.stderr)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert process.stderr.splitlines()[-1] == "[]"
