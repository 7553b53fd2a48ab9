"""Results of models without an adapter: their file, tables, comparison, workers and command."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.cli import main
from conformance.models import rendering, workers
from conformance.models.judgements import JudgedModel, ModelCheck, Sweep, clauses, known, load, save
from results.record.files import RecordError
from tests.support.suite_runs import refused

EQUAL, RESUME = "accumulation.equals-full-batch", "resume.bit-identical"
IGNORED = "forward in the model's own file calls cross_entropy itself, and ignores the count"


def model(name: str, *checks: ModelCheck, not_run: str = "") -> JudgedModel:
    return JudgedModel(f"transformers:{name}", checks, not_run)


def failed(clause: str = EQUAL, cause: str = IGNORED, case: str = "") -> ModelCheck:
    return ModelCheck(clause, "fail", "4", "1", cause, case)


def passed(clause: str = EQUAL, case: str = "") -> ModelCheck:
    return ModelCheck(clause, "pass", "1", "1", case=case)


SWEEP = Sweep(
    {"torch": "2.13.0", "transformers": "5.24.0"},
    (
        model("AForMaskedLM", failed(), passed(RESUME)),
        model("BForMaskedLM", failed(), passed(RESUME)),
        model("CForMaskedLM", passed(), failed(RESUME, "")),
        model("DForCTC", not_run="no loss: ValueError: 12 is not 13"),
        model("EForCTC", not_run="no loss: ValueError: 5 is not 7"),
    ),
)


def test_the_gravest_case_is_the_clause_s_result() -> None:
    left = ModelCheck(EQUAL, "not judged", "why", case="b")
    assert model("A", passed(), left, failed(case="c")).outcomes() == {EQUAL: "fail"}
    assert model("A", left, passed(case="a")).outcomes() == {EQUAL: "pass"}
    assert model("A", left).outcomes() == {EQUAL: "not judged"}


def test_failures_are_grouped_by_cause_and_the_others_stand_alone() -> None:
    groups = SWEEP.failed()
    assert groups[EQUAL, IGNORED] == ["transformers:AForMaskedLM", "transformers:BForMaskedLM"]
    assert groups[RESUME, "transformers:CForMaskedLM"] == ["transformers:CForMaskedLM"]
    assert len(groups) == 2


def test_a_finding_names_the_shared_cause_but_no_model_of_its_own() -> None:
    assert known("transformers:AForMaskedLM", IGNORED) == "head-ignores-the-count"
    assert known("transformers:CForMaskedLM", "") == ""
    assert known("transformers:ClvpForCausalLM", "") == "checkpointing-of-clvp-is-off"
    assert SWEEP.new() == [f"transformers:CForMaskedLM {RESUME}"]


@pytest.mark.parametrize("name", ["heads.json", "heads.json.gz"])
def test_a_sweep_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    save(SWEEP, tmp_path / name)
    again = load(tmp_path / name)
    assert again.failed() == SWEEP.failed()
    assert [each.not_run for each in again.models] == [each.not_run for each in SWEEP.models]
    assert list(rendering.changes(SWEEP, again))[1:] == ["compared: 5 classes", "no result of a class in both differs"]


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"verdicts": []}', encoding="utf-8")
    with pytest.raises(RecordError, match="is no table of models"):
        load(path)


def test_a_table_has_its_denominators() -> None:
    text = "\n".join(rendering.table(SWEEP))
    assert "3 of 5 classes were trained, 2 were not" in text
    assert f"| `{EQUAL}` | 1 | 2 | 0 |" in text
    assert "| MaskedLM | 3 | 2 of 3 | 1 of 3 |" in text
    assert text.splitlines()[-1] == "1 failed, 2 known, 3 passed"
    assert "no loss: ValueError: N is not N (2 classes): DForCTC, EForCTC" in text
    assert f"{IGNORED} (2 classes, head-ignores-the-count): AForMaskedLM, BForMaskedLM" in text


def test_a_failure_has_its_requirement_and_source() -> None:
    text = "\n".join(rendering.one(SWEEP.models[2], SWEEP.versions))
    assert f"FAIL       {RESUME}: got 4, want 1" in text
    assert clauses()[RESUME].requirement in text
    assert clauses()[RESUME].source in text
    assert text.splitlines()[-1] == "1 failed, 1 passed"


def test_the_last_line_counts_known_failures_apart() -> None:
    left = ModelCheck(RESUME, "not judged", "why")
    assert [*rendering.one(model("A", failed(), failed(case="b"), left), {})][-1] == "2 known, 1 not judged"


def test_changes_are_told_by_clause() -> None:
    now = Sweep(
        {"transformers": "5.25.0"},
        (
            model("AForMaskedLM", passed(), passed(RESUME)),
            model("BForMaskedLM", failed(), failed(RESUME)),
            model("FForCTC"),
        ),
    )
    lines = list(rendering.changes(SWEEP, now))
    assert lines[0].endswith("-> transformers 5.25.0")
    assert "only in the older: 3 classes: CForMaskedLM, DForCTC, EForCTC" in lines
    assert "only in the newer: 1 class: FForCTC" in lines
    assert f"{EQUAL}: fail -> pass: 1 class: AForMaskedLM" in lines
    assert f"{RESUME}: pass -> fail: 1 class: BForMaskedLM" in lines
    assert rendering.worse(SWEEP, now) == [f"transformers:BForMaskedLM {RESUME}"]
    assert rendering.worse(SWEEP, SWEEP) == []


def test_a_class_that_no_longer_trains_is_worse() -> None:
    now = Sweep({}, (model("AForMaskedLM", not_run="no loss"),))
    assert rendering.worse(SWEEP, now) == ["transformers:AForMaskedLM not run"]
    assert "trained, now not run: 1 class: AForMaskedLM" in list(rendering.changes(SWEEP, now))


def test_classes_without_a_turn_are_not_compared() -> None:
    late = Sweep({}, (*SWEEP.models[1:], model("AForMaskedLM", not_run="interrupted")), complete=False)
    assert rendering.worse(late, SWEEP) == rendering.worse(SWEEP, late) == []
    lines = list(rendering.changes(late, SWEEP))
    assert "not compared, because they had no turn on a side: 1 class" in lines
    assert "compared: 4 classes" in lines
    assert "1 class had no turn" in "\n".join(rendering.table(late))


def test_clauses_that_only_models_have_are_not_those_of_the_suite() -> None:
    assert clauses()["accumulation.normalised-once"].level == "MUST"
    assert clauses()["accumulation.switch-decides"].level == "SHOULD"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MODULE", "tests.support.models_worker")


@pytest.mark.usefixtures("stub")
def test_crashes_and_endless_models_cost_one_model_each() -> None:
    pool = workers.Pool(2, 3.0, 60.0)
    versions, names = pool.names()
    reports: list[JudgedModel] = []
    sweep = pool.sweep(versions, names, reports.append)
    reasons = {each.model: each.not_run for each in sweep.models}
    assert reasons == {
        "GoodForCausalLM": "",
        "CrashForCausalLM": "the process ended with status 3",
        "SlowForCausalLM": "took more than 3 s",
        "OddForCausalLM": "no loss",
    }
    assert sweep.complete
    assert len(reports) == 4


@pytest.mark.usefixtures("stub")
def test_what_has_no_time_is_listed() -> None:
    sweep = workers.Pool(1, 3.0, 0.0).sweep({}, ["A", "B"], lambda _: None)
    assert not sweep.complete
    assert [each.not_run for each in sweep.models] == ["no time was left"] * 2


@pytest.mark.usefixtures("stub")
def test_the_command_writes_a_table_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "heads.json")
    words = ["judge-model", "--all", "transformers", "--only", "Good,Odd", "--json", path]
    assert main(words) == 0
    assert "1 of 2 classes were trained" in capsys.readouterr().out
    assert main([*words, "--against", path, "--output", str(tmp_path / "heads.md")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no result of a class in both differs"
    assert (tmp_path / "heads.md").read_text(encoding="utf-8").startswith("# Heads of transformers 1.0\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a MODEL, or give --all transformers"),
        (["x:y", "--all", "transformers"], "name a MODEL, or give --all transformers"),
        (["nothing"], "got 'nothing', want transformers:CLASS or PACKAGE.MODULE:FACTORY"),
        (["--all", "transformers", "--only", "Nope"], "no class of transformers 1.0 has Nope in its name"),
        (["transformers:OddForCausalLM"], "transformers:OddForCausalLM: no loss"),
        (["--against", "no-such-file.json", "a:b"], "no-such-file.json: cannot be read"),
    ],
)
@pytest.mark.usefixtures("stub")
def test_bad_input_ends_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, "judge-model", *words)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(workers, "MODULE", "tests.models_worker_without")
    assert "models_worker_without is not installed" in refused(capsys, "judge-model", "a:b")
