"""Why recorded results are inconclusive, in a few words."""

from __future__ import annotations

import pytest

from harness.bugs import catalog, result_file
from harness.bugs.results import Status
from harness.publish import docs_tables
from harness.publish.docs_tables import kind_of_reason


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("a==1 b==2 could not be installed: Because b depends on c", "cannot be installed"),
        ("rank 0 failed first: TypeError: Descriptors cannot be created directly.", "dependency"),
        ("rank 1 failed first: ModuleNotFoundError: No module named 'tqdm'", "lacks"),
        (
            "rank 0 failed first: TypeError: f() got an unexpected keyword argument 'x'",
            "do not fit",
        ),
        ("rank 0 failed first: Inconclusive: DeepSpeed took another optimizer: Y", "optimizer"),
        ("rank 0 failed first: NotImplementedError: no skip after a split", "refuses"),
        ("not the documented symptom: step 1: applied 4 times the right gradient", "another fault"),
        ("'saved': adam differs between ranks 0 and 1", "differ between ranks"),
        ("rank 2 failed first: RuntimeError: [pair.cc:538] Connection reset by peer", "connection"),
        ("rank 0 failed first: was ended by SIGABRT", "connection"),
        ("rank 0 failed first: KeyError: 'slow_params'", "other error"),
    ],
)
def test_a_reason_has_a_kind_in_plain_words(reason: str, words: str) -> None:
    assert words in kind_of_reason(reason)


def test_the_table_counts_each_inconclusive_result_once() -> None:
    cells = [cell for name in catalog.sound() for cell in result_file.statuses(name)]
    uncertain = [cell for cell in cells if cell.status is Status.INCONCLUSIVE]
    text = docs_tables.inconclusive()
    assert f"{len(uncertain)} of {len(cells):,} recorded results" in text
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| the ")]
    assert sum(int(row[2]) for row in rows) == len(uncertain)
    assert all(int(row[3]) <= int(row[2]) for row in rows)
