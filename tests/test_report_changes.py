"""What the report shows of a comparison."""

from __future__ import annotations

import re
from dataclasses import replace

from results.comparison import compare
from results.pairing import Comparisons
from results.report.page import render
from tests import doctored
from tests.browser import Reader


def test_a_comparison_shows_environment_numbers_and_what_is_not_judged() -> None:
    old = doctored.baseline()
    test = next(verdict.test for verdict in old.verdicts if "test_float32_sgd[digits-mlp]" in verdict.test)
    old = doctored.with_errors(old, test, 0.01)
    case = test.rpartition("::")[2]
    new = doctored.with_tensors(doctored.with_errors(old, test, 0.99), case, {"output/3": 2})
    new = doctored.with_variant(new, packages={"numpy": "2.5.0", "protobuf": "7.0"}, environment={"threads": "2"})
    timed = {name: replace(m, samples=m.samples[::-1]) if m.unit == "s" else m for name, m in new.measurements.items()}
    new = doctored.with_verdicts(
        replace(new, measurements=timed),
        lambda v: replace(v, code_hash="other") if "test_resume.py" in v.test else v,
    )
    text = render([new], Comparisons((compare(old, new),)))
    changes = Reader(text)
    assert changes.wrong == []
    text = text[text.index('<section id="changes"') :]
    assert "Nothing is worse; 1 test drifted." in text
    assert "companions, whose change it may be: numpy: 2.4.6 → 2.5.0" in text
    assert "<code>TORCH_VERSION=2.13.0 NUMPY_VERSION=2.4.6 tox -e torch</code>" in text
    assert "<li>protobuf: 6.33.1 → 7.0</li>" in text
    assert "threads: 1 → 2: sums may round differently" in text
    assert "6 times not judged here: two records of two moments cannot tell" in text
    assert "first tensor that differs: output/3 (bfloat16), by 2 units in the last place" in text
    assert re.search(r"<summary>\d+ not comparable</summary>", text)
    assert "1 drift.</p>" in text


def test_a_comparison_of_a_record_with_itself_says_so() -> None:
    old = doctored.baseline()
    text = render([old], Comparisons((compare(old, old),)))
    text = text[text.index('<section id="changes"') :]
    assert "Nothing is worse: the two are identical." in text
    assert "Tests whose numbers moved" not in text
    assert "not judged here" not in text
