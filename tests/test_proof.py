"""What a recorded run is proof of, once something has befallen it: of nothing, and why is said."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from harness.spec import Inconclusive, Outcome, Verdict
from harness.trial import code
from harness.trial.records import EXIT_FILE
from tests.recording import RECORDED, Recording

FILE = "deepspeed/runtime/bf16_optimizer.py"
Tamper = Callable[[Recording, str], None]


def missing_rank(run: Recording, variant: str) -> None:
    run.rank_file(variant).unlink()
    run.forget_digests(variant)


def unfinished_rank(run: Recording, variant: str) -> None:
    file = run.rank_file(variant)
    file.rename(file.with_name(file.name + ".part"))
    run.forget_digests(variant)


def empty_file(run: Recording, variant: str) -> None:
    run.rank_file(variant).write_text("")
    run.forget_digests(variant)


def truncated_file(run: Recording, variant: str) -> None:
    lines = run.rank_file(variant).read_text().splitlines(keepends=True)
    run.rank_file(variant).write_text("".join(lines[:-3]))
    run.forget_digests(variant)


def cut_last_line(run: Recording, variant: str) -> None:
    text = run.rank_file(variant).read_text()
    run.rank_file(variant).write_text(text[:-8])
    run.forget_digests(variant)


def garbage_line(run: Recording, variant: str) -> None:
    lines = run.rank_file(variant).read_text().splitlines(keepends=True)
    run.rank_file(variant).write_bytes("".join([lines[0], *lines]).encode() + b"\xff\x00\n")
    run.forget_digests(variant)


def line_that_is_no_record(run: Recording, variant: str) -> None:
    text = run.rank_file(variant).read_text()
    run.rank_file(variant).write_text("[1, 2]\n" + text)
    run.forget_digests(variant)


def lost_line(run: Recording, variant: str) -> None:
    lines = run.rank_file(variant).read_text().splitlines(keepends=True)
    run.rank_file(variant).write_text("".join([*lines[:3], *lines[4:]]))
    run.forget_digests(variant)


def another_ranks_file(run: Recording, variant: str) -> None:
    run.rank_file(variant, 1).write_bytes(run.rank_file(variant, 0).read_bytes())
    run.forget_digests(variant)


def another_variants_file(run: Recording, variant: str) -> None:
    other = "fixed" if variant == "buggy" else "buggy"
    run.rank_file(variant, 1).write_bytes(run.rank_file(other, 1).read_bytes())
    run.forget_digests(variant)


def a_rank_too_many(run: Recording, variant: str) -> None:
    run.rank_file(variant, 2).write_bytes(run.rank_file(variant, 1).read_bytes())


def doubled_line(run: Recording, variant: str) -> None:
    lines = run.rank_file(variant).read_text().splitlines(keepends=True)
    run.rank_file(variant).write_text("".join([*lines[:4], lines[3], *lines[5:]]))
    run.forget_digests(variant)


def two_lines_swapped(run: Recording, variant: str) -> None:
    lines = run.rank_file(variant).read_text().splitlines(keepends=True)
    run.rank_file(variant).write_text("".join([*lines[:3], lines[4], lines[3], *lines[5:]]))
    run.forget_digests(variant)


def changed_file(run: Recording, variant: str) -> None:
    text = run.rank_file(variant).read_text()
    run.rank_file(variant).write_text(text.replace('"loss": ', '"loss":  ', 1))


def changed_figure(run: Recording, variant: str) -> None:
    text = run.rank_file(variant).read_text()
    run.rank_file(variant).write_text(re.sub(r'"loss": \d', '"loss": 9', text, count=1))
    run.forget_digests(variant)


def fifo(run: Recording, variant: str) -> None:
    run.rank_file(variant).unlink()
    os.mkfifo(run.rank_file(variant))


def link(run: Recording, variant: str) -> None:
    kept = run.rank_file(variant).rename(run.folder / "elsewhere")
    run.rank_file(variant).symlink_to(kept)


def device(run: Recording, variant: str) -> None:
    run.rank_file(variant).unlink()
    run.rank_file(variant).symlink_to("/dev/zero")


def endless_line(run: Recording, variant: str) -> None:
    with run.rank_file(variant).open("r+b") as file:
        file.truncate(10 << 30)  # sparse: it takes no room


def many_brackets(run: Recording, variant: str) -> None:
    run.rank_file(variant).write_text("[" * 20_000 + "\n")
    run.forget_digests(variant)


def linked_folder(run: Recording, variant: str) -> None:
    kept = (run.folder / variant).rename(run.folder / "elsewhere")
    (run.folder / variant).symlink_to(kept)


def half_of_the_steps(run: Recording, variant: str) -> None:
    for rank in (0, 1):
        with run.records(variant, rank) as records:
            records[:] = [r for r in records if r["kind"] != "step" or r["step"] <= 5]


def half_of_the_steps_promised(run: Recording, variant: str) -> None:
    half_of_the_steps(run, variant)
    for rank in (0, 1):
        with run.records(variant, rank) as records:
            records[0]["promised"]["steps"]["step"] = [1, 2, 3, 4, 5]


def no_documented_check(run: Recording, variant: str) -> None:
    with run.records(variant, 0) as records:
        records[:] = [record for record in records if record["kind"] != "checkpoint"]


def a_step_twice(run: Recording, variant: str) -> None:
    with run.records(variant, 1) as records:
        records.insert(4, dict(records[3]))


def steps_out_of_order(run: Recording, variant: str) -> None:
    with run.records(variant, 1) as records:
        records[2], records[3] = records[3], records[2]


def unknown_kind(run: Recording, variant: str) -> None:
    with run.record(variant, "step", 1) as step:
        step["kind"] = "stop"


def unknown_fact(run: Recording, variant: str) -> None:
    with run.record(variant, "step", 1) as step:
        step["differing_not"] = {}


def missing_fact(run: Recording, variant: str) -> None:
    with run.record(variant, "step", 1) as step:
        del step["differing"]


def norm_is(value: Any) -> Tamper:
    def tamper(run: Recording, variant: str) -> None:
        with run.record(variant, "step", 0) as step:
            step["grad_norm"] = value

    tamper.__name__ = f"norm_is_{value!r}"
    return tamper


def one_process(run: Recording, variant: str) -> None:
    with run.records(variant, 0) as records:
        pid = records[0]["pid"]
    with run.records(variant, 1) as records:
        records[0]["pid"] = pid


def a_process_that_is_none(run: Recording, variant: str) -> None:
    with run.records(variant, 1) as records:
        records[0]["pid"] = [4711]


def loaded_other_files(run: Recording, variant: str) -> None:
    with run.record(variant, "upstream", 1) as proof:
        proof["loaded"] = "0" * 32


def listed(change: Callable[[dict[str, str]], Any], name: str) -> Tamper:
    """Change the list of loaded files of each rank, and say that it was made just so."""

    def tamper(run: Recording, variant: str) -> None:
        for rank in (0, 1):
            with run.record(variant, "upstream", rank) as proof:
                files = code.files(run.folder, proof["loaded"])
                change(files)
                proof["loaded"] = code.keep(run.folder, files)
        made = run.folder / variant / "made.json"
        told = json.loads(made.read_text())
        made.write_text(
            json.dumps({**told, "loaded": {"0": proof["loaded"], "1": proof["loaded"]}})
        )

    tamper.__name__ = name
    return tamper


def key_twice_in(file: str, key: str) -> Tamper:
    """A first value that json would pass over: nothing else in the folder is any other for it."""

    def tamper(run: Recording, variant: str) -> None:
        place = run.folder / variant / file
        place.write_text(place.read_text().replace(f'"{key}": ', f'"{key}": 9, "{key}": ', 1))
        if place.suffix == ".jsonl":
            run.forget_digests(variant)

    tamper.__name__ = f"{key}_twice_in_{file}"
    return tamper


def no_word_on_how_it_was_made(run: Recording, variant: str) -> None:
    (run.folder / variant / "made.json").unlink()


def exit_that(**changes: Any) -> Tamper:
    def tamper(run: Recording, variant: str) -> None:
        with run.exit(variant) as exit_:
            exit_.update(changes)

    tamper.__name__ = f"exit_{'_'.join(changes)}_{next(iter(changes.values()))!r}"
    return tamper


def exit_of_another_trial(run: Recording, variant: str) -> None:
    other = "fixed" if variant == "buggy" else "buggy"
    shutil.copy(run.folder / other / EXIT_FILE, run.folder / variant / EXIT_FILE)


def no_word_on_upstream(run: Recording, variant: str) -> None:
    with run.records(variant, 1) as records:
        records[:] = [record for record in records if record["kind"] != "upstream"]


def upstream_from_elsewhere(run: Recording, variant: str) -> None:
    with run.record(variant, "upstream", 1) as proof:
        proof["modules"]["deepspeed"]["file"] = "/elsewhere/site/deepspeed/__init__.py"


def upstream_that_was_not_imported(run: Recording, variant: str) -> None:
    with run.record(variant, "upstream", 1) as proof:
        del proof["modules"]["megatron-core"]


def another_release(run: Recording, variant: str) -> None:
    with run.record(variant, "upstream", 1) as proof:
        proof["modules"]["deepspeed"]["version"] = "0.19.7"


def file_with_another_hash(run: Recording, variant: str) -> None:
    with run.record(variant, "upstream", 1) as proof:
        proof["files"][FILE]["sha256"] = "0" * 64


def file_from_elsewhere(run: Recording, variant: str) -> None:
    with run.record(variant, "upstream", 1) as proof:
        proof["files"][FILE]["path"] = f"/elsewhere/{FILE}"


def file_never_loaded(run: Recording, variant: str) -> None:
    with run.record(variant, "upstream", 1) as proof:
        proof["files"][FILE] = None


def crash(run: Recording, variant: str) -> None:
    with run.exit(variant) as exit_:
        exit_ |= {"code": 1, "failure": {"rank": 1, "message": "RuntimeError: out of luck"}}


def crash_without_a_word(run: Recording, variant: str) -> None:
    with run.exit(variant) as exit_:
        exit_["code"] = -9


def deadline(run: Recording, variant: str) -> None:
    with run.exit(variant) as exit_:
        exit_["timed_out"] = True


def survivors(run: Recording, variant: str) -> None:
    with run.exit(variant) as exit_:
        exit_["survivors"] = [4711]


def interruption(run: Recording, variant: str) -> None:
    with run.exit(variant) as exit_:
        exit_["interrupted"] = True


def no_exit(run: Recording, variant: str) -> None:
    (run.folder / variant / EXIT_FILE).unlink()


def half_an_exit(run: Recording, variant: str) -> None:
    (run.folder / variant / EXIT_FILE).write_text('{"code": 0,')


TAMPERINGS: dict[Tamper, str] = {
    missing_rank: "rank 1 left no complete records",
    unfinished_rank: "rank 1 left no complete records",
    empty_file: "rank 1: its records are cut off after 0 lines",
    truncated_file: "rank 1: its records are cut off",
    cut_last_line: "rank 1: its records are cut off",
    garbage_line: "rank 1: line 2 of its records was not written there",
    line_that_is_no_record: "rank 1: line 1 of its records is no record",
    lost_line: "rank 1: line 4 of its records was not written there",
    doubled_line: "rank 1: line 5 of its records was not written there",
    two_lines_swapped: "rank 1: line 4 of its records was not written there",
    changed_file: "rank 1: its records are not those that it left at its end",
    changed_figure: "rank 1: line .* of its records was not written there",
    another_ranks_file: "rank 1: line 1 of its records is not of this rank",
    another_variants_file: "rank 1: its records are of the variant",
    a_rank_too_many: "rank_2.jsonl is of no rank of this trial",
    fifo: "cannot read .*rank_1.jsonl: is no regular file",
    link: "cannot read .*rank_1.jsonl: is a symbolic link",
    device: "cannot read .*rank_1.jsonl: is a symbolic link",
    key_twice_in("rank_1.jsonl", "loss"): "rank 1: line .* has the key 'loss' twice in one object",
    key_twice_in("exit.json", "code"): "exit.json: has the key 'code' twice in one object",
    key_twice_in("made.json", "loaded"): "made.json: has the key 'loaded' twice in one object",
    endless_line: "cannot read .*rank_1.jsonl: has 10737418240 bytes",
    many_brackets: "rank 1: line 1 of its records is nested too deep",
    linked_folder: "is a link",
    half_of_the_steps: "rank 0: step 6 of 'step' was promised, and never came",
    half_of_the_steps_promised: "rank 0 promised other records",
    no_documented_check: "rank 0: 'checkpoint' was promised, and never came",
    a_step_twice: "rank 1: step 2 of 'step', where step 3 of 'step' is due",
    steps_out_of_order: "rank 1: step 2 of 'step', where step 1 of 'step' is due",
    unknown_kind: "rank 1: a record of kind 'stop' that was not promised",
    unknown_fact: "rank 1: step 1 of 'step': differing_not was not promised",
    missing_fact: "rank 1: step 1 of 'step': differing is missing",
    norm_is(float("nan")): "rank 0: line .* holds NaN, which is no number",
    norm_is(float("inf")): "rank 0: line .* holds Infinity, which is no number",
    norm_is("inf"): "rank 0: step 1 of 'step': grad_norm is 'inf', and no number",
    norm_is(True): "rank 0: step 1 of 'step': grad_norm is True, and no number",
    norm_is(None): "rank 0: step 1 of 'step': grad_norm is None, and no number",
    norm_is(-1.0): "rank 0: step 1 of 'step': grad_norm is -1.0, and below 0",
    norm_is([1.0]): r"rank 0: step 1 of 'step': grad_norm is \[1.0\], and no number",
    one_process: "ranks 0 and 1 say that they were one process",
    a_process_that_is_none: "rank 1 did not say who it is",
    loaded_other_files: "is damaged: rank 1 loaded .* not as it was made",
    listed(dict.clear, "empty_list"): "rank 0: its list of loaded files has no deepspeed/__init__",
    listed(lambda files: files.pop(FILE), "list_without_the_bug"): f"loaded files has no {FILE}",
    listed(lambda files: files.update({FILE: "0" * 64}), "list_with_another"): f"has no {FILE} as",
    no_word_on_how_it_was_made: "cannot read .*made.json",
    no_word_on_upstream: "rank 1: its records do not begin and end as a rank's do",
    upstream_from_elsewhere: "rank 1 loaded deepspeed from /elsewhere/",
    upstream_that_was_not_imported: "rank 1 loaded megatron-core from nowhere",
    another_release: "rank 1 ran deepspeed 0.19.7, not 0.19.8",
    file_with_another_hash: f"rank 1 ran another {FILE}",
    file_from_elsewhere: f"rank 1 ran another {FILE}",
    file_never_loaded: f"rank 1 never loaded {FILE}",
    crash: "rank 1 failed first: RuntimeError: out of luck",
    crash_without_a_word: "torchrun left with exit code -9",
    deadline: "ended at its deadline",
    survivors: r"processes \(4711,\) would not end",
    interruption: "interrupted",
    no_exit: "this trial never ended: .* has no exit.json",
    half_an_exit: "cannot read .*exit.json",
    exit_of_another_trial: "exit.json is of the variant",
    exit_that(code=False): "not the record of an exit: code is False",
    exit_that(code="0"): "not the record of an exit: code is '0'",
    exit_that(code=None): "not the record of an exit: code is None",
    exit_that(timed_out=0): "not the record of an exit: timed_out is 0",
    exit_that(survivors=None): "not the record of an exit: survivors is None",
    exit_that(seconds="long"): "not the record of an exit: seconds is 'long'",
    exit_that(also=1): "not the record of an exit: also was not promised",
    exit_that(records={}): "its records are not those that it left at its end",
}


@pytest.mark.parametrize("variant", ["buggy", "fixed"])
@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda tamper: tamper.__name__)
def test_a_run_with_this_is_inconclusive(
    tamper: Tamper, variant: str, recording: Recording
) -> None:
    tamper(recording, variant)
    result = recording.grade()
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.exit_code == 3
    trial = recording.trial(variant)
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert trial.finding is None
    with pytest.raises(Inconclusive, match=TAMPERINGS[tamper]):
        raise Inconclusive(trial.reason)
    assert result.reasons == (f"{variant}: {trial.reason}",)


def test_a_list_of_loaded_files_that_is_lost_or_odd_proves_nothing(recording: Recording) -> None:
    for file in (recording.folder / "loaded").glob("*.json"):
        file.write_text(file.read_text().replace(f'"{FILE}"', f'"{FILE}": "", "{FILE}"', 1))
    assert f"has the key '{FILE}' twice in one object" in recording.trial("fixed").reason
    shutil.rmtree(recording.folder / "loaded")
    assert recording.trial("fixed").reason.endswith(".json: No such file or directory")
    assert recording.grade().verdict is Verdict.INCONCLUSIVE


def test_records_of_another_variants_overlay_are_inconclusive(recording: Recording) -> None:
    shutil.rmtree(recording.folder / "fixed")
    shutil.copytree(RECORDED / "buggy", recording.folder / "fixed")
    trial = recording.trial("fixed")
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert trial.reason == "exit.json is of the variant buggy, and not of fixed"


def test_a_crash_names_the_rank_that_failed_first(recording: Recording) -> None:
    crash(recording, "buggy")
    assert recording.trial("buggy").failure == {"rank": 1, "message": "RuntimeError: out of luck"}
