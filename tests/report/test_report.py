"""The report's page: well formed, self-contained, and nothing in a record or a comparison can act in it."""

import base64
import gzip
import hashlib
import json
import math
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from results import report
from results.compare.changes import Change, ChangeKind
from results.compare.comparison import Comparison, compare
from results.compare.numbers import MovedNumbers, Movement
from results.compare.pairing import Comparisons
from results.record.reading import Outcome, Record, RecordError, Variant
from results.report import render
from results.report.text import clean, described, href, linked
from results.show.differences import markdown
from results.show.findings import findings
from tests.support import doctored
from tests.support.reporting import HOSTILE, MEGABYTES, baselines, infected, infected_page, page, record
from tools.browser import Reader

P, F = Outcome.PASS, Outcome.FAIL


@cache
def parsed(name: str) -> Reader:
    """A page read."""
    return Reader({"baselines": page, "infected": infected_page}[name]())


BOTH = pytest.mark.parametrize("name", ["baselines", "infected"])


def data_behind(name: str) -> dict[str, Any]:
    """The document behind the cells of a page."""
    (text,) = (text for attributes, text in parsed(name).all("script") if attributes.get("id") == "tests-data")
    result: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(text, validate=True)))
    return result


@BOTH
def test_page_is_well_formed_and_its_links_lead_somewhere(name: str) -> None:
    result = parsed(name)
    assert result.wrong == []
    ids = Counter(attributes["id"] for _, attributes in result.elements if "id" in attributes)
    assert [identifier for identifier, count in ids.items() if count > 1] == []
    assert {a["aria-labelledby"] for _, a in result.elements if "aria-labelledby" in a} <= {*ids}
    links = [attributes["href"] or "" for attributes, _ in result.all("a")]
    assert {link[1:] for link in links if re.match(r"#[^?]", link)} <= set(ids)
    options = {attributes["value"] for attributes, _ in result.all("option")}
    for link in (link for link in links if link.startswith("#?")):
        for field, value in parse_qsl(link[2:], strict_parsing=True):
            assert field in ids
            assert value in options


@BOTH
def test_page_requests_nothing_and_runs_its_own_scripts_alone(name: str) -> None:
    result = parsed(name)
    for tag, attributes in result.elements:
        assert not {"src", "srcset", "action", "formaction", "poster", "ping", "style"} & attributes.keys()
        assert not [attribute for attribute in attributes if attribute.startswith("on")]
        if tag == "a":
            link = attributes["href"] or ""
            assert link.startswith("#") or (href(link) and attributes["rel"] == "noopener noreferrer"), link
        elif "href" in attributes:
            assert (tag, attributes["href"]) == ("link", "data:,")
    (policy,) = [a["content"] or "" for a, _ in result.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    data = ("application/json", "application/gzip")
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [
        digest(text) for a, text in result.all("script") if a.get("type") not in data
    ]
    assert rules["style-src"].split() == [digest(style) for _, style in result.all("style")]
    assert "unsafe" not in policy
    (curves,) = [text for a, text in result.all("script") if a.get("type") == "application/json"]
    assert not set("<>&\u2028\u2029") & set(curves)
    json.loads(curves)


def digest(text: str) -> str:
    """The name of a script or a style in a policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_hostile_records_add_no_kind_of_element_and_long_texts_are_cut() -> None:
    benign, hostile = ({tag for tag, _ in parsed(name).elements} for name in ("baselines", "infected"))
    assert hostile - benign <= {"strong", "ul"}, "interrupted runs are emphasised, and have notes"
    assert len(parsed("infected").all("script")) == len(parsed("baselines").all("script"))
    assert len(infected_page()) < 8 * 2**20
    texts = json.dumps(data_behind("infected"), ensure_ascii=False)
    notices = re.findall(r"… \[([\d,]+) more characters are left out\]", texts)
    assert max(int(notice.replace(",", "")) for notice in notices) > (MEGABYTES - 1) * 2**20


def test_page_has_every_test_once_with_reasons_and_links() -> None:
    data = data_behind("baselines")
    verdicts = [
        (int(run), test["verdict"]) for row in data["rows"] for run, tests in row["tests"].items() for test in tests
    ]
    result = Counter((run, data["verdicts"][number]["outcome"]) for run, number in verdicts)
    for run, one in enumerate(baselines()):
        assert {o: result[run, o.value] for o in Outcome} == {
            o: sum(v.outcome is o for v in one.verdicts) for o in Outcome
        }
    text = json.dumps(data)
    for finding in findings(baselines()[-1]):
        assert json.dumps(finding.reason)[1:-1] in text
        assert finding.link in text


def test_page_is_the_same_each_time_and_stays_small() -> None:
    assert render(baselines()) == page()
    assert len(parsed("baselines").elements) < 60_000


@pytest.mark.parametrize("records", [[], [record("torch", {})]], ids=["none", "one without a test"])
def test_write_of_little_is_well_formed(records: list[Record], tmp_path: Path) -> None:
    report.write(records, tmp_path / "report.html")
    assert Reader((tmp_path / "report.html").read_text("utf-8")).wrong == []


def test_write_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot be written"):
        report.write([], tmp_path / "missing" / "report.html")


def changes_of(comparisons: Comparisons) -> str:
    """The section of changes of a page."""
    text = render([pair.new for pair in comparisons.pairs], comparisons)
    assert Reader(text).wrong == []
    return text[text.index('<section id="changes"') : text.index('<section id="matrix"')]


def test_changes_show_environment_numbers_and_what_is_not_judged() -> None:
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
    text = changes_of(Comparisons((compare(old, new),)))
    assert "No regressions; 1 test drifted." in text
    assert "companion packages, which may be the cause: numpy: 2.4.6 → 2.5.0" in text
    assert "<code>TORCH_VERSION=2.13.0 NUMPY_VERSION=2.4.6 tox -e torch</code>" in text
    assert "<li>protobuf: 6.33.1 → 7.0</li>" in text
    assert "threads: 1 → 2: sums may round differently" in text
    assert "6 timings not judged here: times of separate runs are not comparable" in text
    assert "first tensor that differs: output/3 (bfloat16), by 2 units in the last place" in text
    assert re.search(r"<summary>\d+ not comparable</summary>", text)
    assert "1 drift.</li>" in text
    text = changes_of(Comparisons((compare(old, old),)))
    assert "No regressions: the two runs are identical." in text
    assert "Tests with moved numbers" not in text
    assert "not judged here" not in text


def test_changes_are_shown_with_the_worst_first() -> None:
    old = record("torch", {"s.fixed": F, "s.broken": P, "s.same": P})
    new = record("torch", {"s.fixed": P, "s.broken": F, "s.same": P})
    pairs = (compare(old, new), compare(old, record("tf", {"s.same": P})))
    text = changes_of(Comparisons(pairs, ("jax nojit cpu: only among the old records",)))
    assert text.index("newly failing") < text.index("newly passing")
    assert "Regressions found: 1 of 2 changes." in text
    assert "different frameworks: torch and tf" in text
    assert "only among the old records" in text


def test_changes_of_hostile_records_only_show_themselves() -> None:
    pairs = []
    for text in HOSTILE:
        variant = Variant(text, {text: text}, {"numpy": text, text: text}, {text: text}, (text,))
        other = Variant(text, {text: f"{text}2"}, {"numpy": f"{text}2", text: f"{text}2"}, {text: "2"}, ("avx2",))
        changes = tuple(Change(kind, text, text, text, text, text, text) for kind in ChangeKind)
        moved = tuple(MovedNumbers(text, text, movement, text, text, text, text, text) for movement in Movement)
        old, new = replace(infected(text), variant=variant), replace(infected(f"{text}2"), variant=other)
        pairs.append(Comparison(old, new, changes, 1, numbers=moved))
    assert Reader(render([], Comparisons(tuple(pairs)))).wrong == []
    prose = re.sub("`[^`]*`", "", markdown(Comparisons(tuple(pairs))))
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", prose)


@pytest.mark.parametrize(
    ("link", "good"),
    [
        ("https://example.org/a?b=c#d", True),
        ("http://example.org", True),
        ("https://example.org/@name", True),
        ("https://name:hunter2@example.org/", False),
        ("https://name@example.org/", False),
        ("HTTPS://:hunter2@example.org", False),
        ("javascript:alert(1)", False),
        ("https://", False),
        ("https://[", False),
        ("https://a b", False),
        ("https://a/\u202e", False),
        (" https://example.org", False),
        ("//example.org", False),
        ("https://example.org/" + "x" * 3000, False),
    ],
)
def test_href_takes_web_addresses_alone(link: str, good: bool) -> None:
    assert href(link) == (link if good else "")


def test_clean_and_linked_make_a_text_visible() -> None:
    assert clean("a\u202eb\x00\n") == "a‹U+202E›b‹U+0000›‹U+000A›"
    assert clean("a\nb", lines=True) == "a\nb"
    assert clean("\ud800") == "‹U+D800›"
    assert clean("x" * 10, 4) == "xxxx… [6 more characters are left out]"
    assert described({"a": [1.5, True, None, math.inf]}) == "{a: [1.5, yes, none, inf]}"
    parts = linked("a https://a.org/1, b (https://b.org) c")
    assert [(part.text, part.href) for part in parts if part.href] == [
        ("https://a.org/1", "https://a.org/1"),
        ("https://b.org", "https://b.org"),
    ]
    assert "".join(part.text for part in parts) == "a https://a.org/1, b (https://b.org) c"
