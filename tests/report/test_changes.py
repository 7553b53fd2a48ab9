"""What the report shows of a comparison."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from results.compare.changes import Change, ChangeKind
from results.compare.comparison import Comparison, compare
from results.compare.numbers import MovedNumbers, Movement
from results.compare.pairing import Comparisons
from results.record.reading import Variant
from results.report.page import render
from results.show.differences import markdown
from tests.support import doctored
from tests.support.reporting import HOSTILE, infected
from tools.browser import Reader


def test_a_comparison_shows_environment_numbers_and_what_is_not_judged() -> None:
    old = doctored.baseline()
    test = next(verdict.test for verdict in old.verdicts if "test_float32_sgd_parity[digits-mlp]" in verdict.test)
    old = doctored.with_errors(old, test, 0.01)
    case = test.partition("/")[2]
    new = doctored.with_tensors(doctored.with_errors(old, test, 0.99), case, {"output/3": 2})
    new = doctored.with_variant(new, packages={"numpy": "2.5.0", "protobuf": "7.0"}, environment={"threads": "2"})
    timed = tuple(replace(m, samples=m.samples[::-1]) if m.unit == "s" else m for m in new.measurements)
    new = doctored.with_verdicts(
        replace(new, measurements=timed),
        lambda v: replace(v, setup_hash="other") if v.clause.startswith("resume.") else v,
    )
    text = render([new], Comparisons((compare(old, new),)))
    changes = Reader(text)
    assert changes.wrong == []
    text = text[text.index('<section id="changes"') :]
    assert "No regressions; 1 test drifted." in text
    assert "companion packages, which may be the cause: numpy: 2.4.6 → 2.5.0" in text
    assert "<code>TORCH_VERSION=2.13.0 NUMPY_VERSION=2.4.6 tox -e torch</code>" in text
    assert "<li>protobuf: 6.33.1 → 7.0</li>" in text
    assert "threads: 1 → 2: sums may round differently" in text
    assert "6 timings not judged here: times of separate runs are not comparable" in text
    assert "first tensor that differs: output/3 (bfloat16), by 2 units in the last place" in text
    assert re.search(r"<summary>\d+ not comparable</summary>", text)
    assert "1 drift.</p>" in text


def test_a_comparison_of_a_record_with_itself_says_so() -> None:
    old = doctored.baseline()
    text = render([old], Comparisons((compare(old, old),)))
    text = text[text.index('<section id="changes"') :]
    assert "No regressions: the two runs are identical." in text
    assert "Tests with moved numbers" not in text
    assert "not judged here" not in text


@pytest.mark.parametrize("part", range(4))
def test_nothing_in_a_comparison_can_act_in_the_page(part: int) -> None:
    pairs = []
    for text in HOSTILE[part::4]:
        old, new = infected(text), infected(f"{text}2")
        variant = Variant(text, {text: text}, {"numpy": text, text: text}, {text: text}, (text,))
        other = Variant(text, {text: f"{text}2"}, {"numpy": f"{text}2", text: f"{text}2"}, {text: "2"}, ("avx2",))
        changes = tuple(Change(kind, text, text, text, text, text, text) for kind in ChangeKind)
        moved = tuple(MovedNumbers(text, text, movement, text, text, text, text, text) for movement in Movement)
        old, new = replace(old, variant=variant), replace(new, variant=other)
        pairs.append(Comparison(old, new, changes, 1, numbers=moved))
    page = Reader(render([], Comparisons(tuple(pairs))))
    assert page.wrong == []
    prose = re.sub("`[^`]*`", "", markdown(Comparisons(tuple(pairs))))
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", prose)
