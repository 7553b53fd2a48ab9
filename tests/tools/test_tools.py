"""The tools of the checkout: baselines, limits, selections, benchmarks, style, and generated pages of the docs."""

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.cli import main
from conformance.known_failures.reading import load_known
from conformance.runner import machine
from conformance.runner.baselines import BASELINES
from conformance.runner.identity import DEMANDS, suite_areas
from conformance.runner.selection import CORE, FOLDER, QUICK, Selection
from conformance.runner.selection import read as read_selection
from conformance.spec.clauses import load_clauses
from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.contract import Capability, Declaration
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer
from frameworks.registry import adapter_file, built_in
from results.history.changes import LineHistory, find_explanations
from results.history.changes import load as load_histories
from results.record import reading
from results.record.folders import list_records
from results.record.reading import Record, load
from tests.support.recorded import BASE
from tests.support.suite_runs import ROOT, CommandResult, run
from tools import ladder, limits
from tools.baselines import default_baselines, stale
from tools.browser import chromium, in_browser
from tools.commands import TOOLS, WITH_FRAMEWORKS, commands, style
from tools.docs import generate, site, summaries
from tools.docs.blocks import baselines, load_scenarios
from tools.docs.promises import PROMISES, Promise, table
from tools.docs.summaries import SWEEPS, example, histories
from tools.faults import engine
from tools.processors import LEVELS, environment, levels
from tools.selections import (
    CHANGE,
    CORE_S,
    QUICK_S,
    Candidate,
    candidates_of,
    cases,
    caught_by,
    changes_of,
    core_of,
    quick_of,
)
from tools.style import Phrase, hits, texts

LIMITS = '[python]\na = 2\n"." = 1\nall = 3\n[all]\nfiles = 2\ntoml = 100\nweb = 1\n'


def test_baselines_of_default_modes_are_not_stale() -> None:
    areas = suite_areas()
    old = {
        f"{record.series.framework} {record.series.mode}": stale(record, areas, DEMANDS)
        for record in default_baselines()
    }
    assert {name: names for name, names in old.items() if names} == {}
    assert len(old) == 7
    record = replace(BASE, suite=replace(BASE.suite, areas={"tests": "1", "fixtures": "2"}))
    assert stale(record, {"tests": "1", "fixtures": "3"}, ("tests", "fixtures")) == ["fixtures"]


def test_tests_that_need_a_framework_are_run_with_frameworks() -> None:
    imports = {name for framework in built_in() for name in adapter_file(framework).imports}
    skips = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if imports & {*re.findall(r'importorskip\("(\w+)"\)', path.read_text("utf-8"))}
    }
    assert skips
    assert skips <= {*WITH_FRAMEWORKS}
    assert [path for path in WITH_FRAMEWORKS if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a/b.py": "1\n2\n", "setup.py": "1\n"}, ""),
        ({"a/b.py": "1\n2\n3\n"}, "python a: got 3, want at most 2\n"),
        ({"c/b.py": "1\n"}, "python c: got 1, want at most 0\n"),
        ({"a/b.py": "", "a/c.py": "", "a/d.py": ""}, "all files: got 3, want at most 2\n"),
        ({"a/b.js": "1\n2\n"}, "all web: got 2, want at most 1\n"),
    ],
)
def test_limits_prints_each_size_above_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], message: str
) -> None:
    for name, text in {**files, "LIMITS.toml": LIMITS}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "."], check=True)
    assert limits.main(tmp_path) == (1 if message else 0)
    assert capsys.readouterr().out == message


@pytest.mark.parametrize("level", sorted(LEVELS.keys() - {"as it is"}))
@pytest.mark.parametrize("framework", ["torch", "tf", "jax"])
def test_environment_of_a_level_lowers_the_instruction_sets(level: str, framework: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags : sse4_2 avx avx2 fma avx512f avx512_vnni\n")
    assert machine.level(machine.instruction_sets(tmp_path / "cpuinfo", environment(level, framework))) == level


def test_environment_joins_flags_that_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=b")
    assert environment("avx2", "jax")["XLA_FLAGS"] == "--xla_a=b --xla_cpu_max_isa=AVX2"
    assert "ONEDNN_MAX_CPU_ISA" not in environment("avx2", "torch")


def test_levels_without_a_switch_are_the_processors() -> None:
    assert levels("paddle", ["avx2"]) == levels("paddle") == ["as it is"]
    assert levels("torch") == [*LEVELS]
    assert levels("torch", ["avx2"]) == ["avx2"]


def test_nightly_uses_existing_options_of_tools() -> None:
    commands = re.findall(r"-m tools (\w+)(.*)", (ROOT / ".ci" / "nightly").read_text())
    assert commands
    for name, arguments in commands:
        source = (ROOT / TOOLS[name].arguments[0].replace(".", "/")).with_suffix(".py").read_text()
        assert all(f'"{option}"' in source for option in re.findall("--[a-z-]+", arguments)), (name, arguments)


@pytest.mark.parametrize("name", PROMISES)
def test_table_has_every_quantity_of_a_promise(name: str) -> None:
    promise = PROMISES[name]
    for pattern, document in promise.costs.items():
        assert f"| {document} " in table(Promise({pattern: document}), baselines(), {})
    for scenario in promise.scenarios:
        assert f"| {scenario}, " in table(replace(promise, scenarios=(scenario,)), baselines(), load_scenarios())


def candidate(test: str, seconds: float, faults: str = "", *, must: bool = False, judged: bool = True) -> Candidate:
    return Candidate(test, seconds, frozenset(faults), test.partition("/")[0] if must else "", judged)


def test_core_of_and_quick_of_fill_their_time() -> None:
    tests = [candidate(f"a.a/t[{i}]", 1) for i in range(9)] + [candidate("a.a/refused", 0.1, judged=False)]
    assert len(core_of(tests, 5)) == 5
    assert len(quick_of(tests, 5)) == 5
    assert "a.a/refused" not in quick_of(tests, 50)
    assert cases(["a.b/t[1]", "a.b/t[2-x]", "a.b/u"]) == {"a.b/t": ["1", "2-x"], "a.b/u": [""]}


@pytest.fixture(scope="module", params=sorted(name for name in CORE_S if not name.endswith("-loop")))
def series(request: pytest.FixtureRequest) -> tuple[Record, Selection]:
    framework, _, mode = request.param.partition("-")
    *_, path = (path for path in list_records(BASELINES) if path.match(f"{framework}-*-cpu-{mode}.json.gz"))
    return load(path), read_selection(FOLDER / f"{request.param}.json")


def test_core_has_every_must_clause_and_catches_the_faults(series: tuple[Record, Selection]) -> None:
    record, selection = series
    name = record.series.framework
    every = candidates_of(record, caught_by(name, engine.read()), changes_of(name, record.series.mode))
    core = [test for test in every if selection.has(test.test, CORE)]
    assert {test.must for test in every if test.judged} == {test.must for test in core if test.judged}
    faults, caught = ({fault for test in tests for fault in test.faults} for tests in (every, core))
    assert len(caught) >= 0.99 * len(faults)
    assert {fault for fault in faults - caught if fault.startswith(CHANGE)} == set()


def test_quick_is_a_minute_of_judged_tests(series: tuple[Record, Selection]) -> None:
    record, selection = series
    quick = [test for test in candidates_of(record, {}) if selection.has(test.test, QUICK)]
    assert quick
    assert all(test.judged for test in quick)
    assert sum(test.seconds for test in quick) <= QUICK_S * 1.05


def test_kills_name_existing_tests() -> None:
    recorded = {verdict.test for verdict in load(next(BASELINES.glob("reference-*-emulated.json.gz"))).verdicts}
    named = {test for fault, tests in engine.read().items() if fault.startswith("reference.") for test in tests}
    assert len(named) > 500
    assert named - recorded == set()


class WithoutRecomputation(ReferenceFramework):
    """Declares no bfloat16, and raises for recomputation and for a recipe without any technique."""

    def declares(self, capability: Capability) -> Declaration:
        if capability is Capability.O1_BFLOAT16:
            return Declaration(False, "this twin has no such format")
        return super().declares(capability)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        if recipe.recompute is not None:
            raise TypeError("a segment is not run twice here")
        if (recipe.precision.level, recipe.accumulation) == ("O0", 1):
            raise TypeError(f"{model.name} cannot be trained")
        return super().trainer(model, recipe, weights)


def steps(framework: str, *arguments: str | Path) -> CommandResult:
    options = ("-p", "pytest_benchmark.plugin", "--benchmark-max-time=0.01", "--benchmark-min-rounds=2")
    suite = ("tools/benchmarks", "-rs", f"--framework={framework}")
    return run([sys.executable, "-m", "pytest", *suite, *options, *map(str, arguments)])


def test_bench_json_has_framework_fixture_and_technique(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    result = steps("reference", "-k", "digits-mlp and (plain or accumulation)", "--benchmark-json", file)
    assert result.status == 0, result.lines
    benchmarks = json.loads(file.read_text("utf-8"))["benchmarks"]
    assert [b["name"] for b in benchmarks] == [
        "test_step[reference-emulated-cpu-digits-mlp-plain]",
        "test_step[reference-emulated-cpu-digits-mlp-accumulation-4]",
    ]
    assert {b["group"] for b in benchmarks} == {"digits-mlp"}
    assert [b["extra_info"]["technique"] for b in benchmarks] == ["plain", "accumulation-4"]
    for info in (b["extra_info"] for b in benchmarks):
        assert info["framework"] == "reference"
        assert (info["mode"], info["device"], info["fixture"]) == ("emulated", "cpu", "digits-mlp")
        assert (info["version"], info["samples"], info["threads"]) == (ReferenceFramework("cpu").version(), 32, None)
        assert info["thread_variables"]["OMP_NUM_THREADS"] == "1"
    assert all(b["stats"]["rounds"] >= 2 and b["stats"]["min"] > 0.0 for b in benchmarks)


def test_bench_skips_what_cannot_be_timed() -> None:
    result = steps(
        "tests.tools.test_tools:WithoutRecomputation", "-k", "digits-mlp and (bfloat16 or recomputation or plain)"
    )
    assert result.status == 1, result.lines
    skipped = "\n".join(line for line in result.lines if line.startswith("SKIPPED"))
    assert "precision.O1-bfloat16: this twin has no such format" in skipped
    assert "raises TypeError: a segment is not run twice here" in skipped
    assert any("TypeError: digits-mlp cannot be trained" in line for line in result.lines)


def test_bench_of_an_unknown_framework_or_mode_is_refused_in_one_line() -> None:
    for result in (steps("nowhere"), steps("reference", "--mode=nowhere")):
        assert (result.status, len(result.lines)) == (2, 1), result.lines
        assert "nowhere" in result.lines[0]


def search(folder: Path, name: str, source: str) -> list[tuple[int, str, str]]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, "utf-8")
    return [(hit.line, hit.phrase, hit.better) for hit in hits([path], folder)]


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("a.py", 'X = f"{1} Adam in eight bits"', (1, "in eight bits", "8-bit")),
        ("a.py", '"""One.\n\nThe call was\nseen to act.\n"""', (3, "was seen to", "takes effect, was observed to")),
        ("a.py", 'raise ValueError("mend it")', (1, "mend", "fix")),
        ("a.md", "One.\n\nIt did not come true.", (3, "did not come true", "occur")),
        ("a.py", "class Shown:\n    def told(self): pass", (1, "Shown", "a verb or noun: text, view, result")),
        ("a.py", "WIDTH = 1\nNOT_KEPT: int = 2", (2, "NOT_KEPT", "what it is: selection, copies, state")),
        ("shown.py", "", (1, "shown", "a verb or noun: text, view, result")),
        ("a.toml", 'reason = """\nTold by one a process."""', (2, "Told", "reported, named")),
    ],
)
def test_hits_of_a_planted_phrase_have_its_line(
    tmp_path: Path, name: str, source: str, expected: tuple[int, str, str]
) -> None:
    assert search(tmp_path, name, source)[0] == expected


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", '"""See `told` and `worker_group.make`; told: a line; they cannot tell, or tell apart."""'),
        ("a.py", "def make(told): return screw  # mend it"),
        ("a.py", '__all__ = ["told"]'),
        ("a.md", "```text\nmend it\n```\n[page](told.md)"),
        ("a.md", "<!-- some table: begin -->\nmend it\n<!-- some table: end -->"),
        ("a.py", "def test_a_change_is_told(): pass"),
        ("a.py", "from calls import shown"),
    ],
)
def test_hits_of_names_code_and_generated_blocks_are_none(tmp_path: Path, name: str, source: str) -> None:
    assert search(tmp_path, name, source) == []


def test_style_leaves_programs_of_findings_out() -> None:
    searched = {path.relative_to(ROOT).as_posix() for path in texts()}
    assert {"README.md", "conformance/cli/spec.py", "results/report/text.py"} - searched == set()
    assert not any("/findings/" in name for name in searched)


@pytest.mark.parametrize("phrases", [[Phrase("a.py", 3, "mend", "fix"), Phrase("b.md", 1, "told", "reported")], []])
def test_style_prints_its_hits_and_fails_for_any(monkeypatch: pytest.MonkeyPatch, phrases: list[Phrase]) -> None:
    monkeypatch.setattr("tools.style.hits", lambda _: phrases)
    result = CliRunner().invoke(style, standalone_mode=False)
    lines = ["a.py:3: 'mend': write 'fix'", "b.md:1: 'told': write 'reported'"] if phrases else []
    assert (result.return_value, result.output.splitlines()) == (1 if phrases else 0, lines)


def test_ladder_has_the_steps_of_its_page_and_names_capabilities() -> None:
    page = (ROOT / "docs" / "adapters.md").read_text("utf-8").partition("## The ladder")[2].partition("\n## ")[0]
    assert [int(number) for number in re.findall(r"^(\d+)\. \*\*", page, re.MULTILINE)] == [
        int(m) for m in ladder.Ladder.modes
    ]
    names = [name for step in ladder.STEPS.values() for name in step]
    assert [name for name in names if not any(c.value.startswith(name) for c in Capability)] == []


def test_ladder_of_an_unknown_selection_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ladder.main(["nosuch"]) == 2
    assert capsys.readouterr().err == "got nosuch, want core or all\n"


DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = (*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *DOCS)
UNEXPLAINED = {"jax composition.shipped-gradients"}
"""Changes whose cause is not known: the gradient of gelu at -5 in JAX 0.4.38."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, in which each block is its name."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "texts", lambda names: {name: name for name in names})
        site.build(folder)
    return folder


def test_pages_have_every_block_once() -> None:
    counts = Counter(name for page in generate.pages() for name in generate.markers(page.read_text("utf-8")))
    assert counts == Counter({name for names in generate.SOURCES.values() for name in names} | generate.MEASURED)


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_committed_pages_have_placeholders(page: Path) -> None:
    text = page.read_text("utf-8")
    for name in set(generate.markers(text)) - generate.MEASURED - generate.SUMMARIES:
        assert generate.between(page, text, name) == generate.PLACEHOLDER.format(page.stem), name


@pytest.mark.slow
@pytest.mark.parametrize("source", sorted(generate.SOURCES.keys() - {"tools.docs.blocks:blocks"}))
def test_sources_make_their_blocks(source: str) -> None:
    """The blocks of clauses take minutes and are left out; `tox -e docs` makes them."""
    assert {*generate.resolve(source)()} == {*generate.SOURCES[source]}


def test_site_has_every_page_and_needs_no_network(built: Path) -> None:
    pages = {page.stem for page in built.glob("*.html")} - {"404"}
    assert pages == {*site.names(), "index"}
    for name in pages:
        text = (built / f"{name}.html").read_text("utf-8")
        assert "Generated: " not in text, name
        assert not re.search(r'<(?:script|img)[^>]*src="https?:|<link[^>]*href="https?:', text), name
    assert 'id="scaling.skip-is-atomic"' in (built / "clauses.html").read_text("utf-8")


@in_browser
def test_search_of_the_site_works_without_a_server(built: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        browser.open(built / "index.html")
        browser.run("document.querySelector('[data-md-component=search-query]').focus()")
        browser.driver.switch_to.active_element.send_keys("covering array")
        results = "return [...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
        end = time.monotonic() + 60
        while not (result := browser.driver.execute_script(results)) and time.monotonic() < end:
            time.sleep(0.2)
    assert any("tolerances.html" in link for link in result)


def test_docs_with_dead_links_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mkdocs")
    for name in ("mkdocs.yml", "tools/docs/site.py", "docs/assets/iframe-worker.js"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    links = "[a](nowhere.md), [a](other.md#nothing), ![a](lost.png) and the [README](../README.md)"
    (tmp_path / "README.md").write_text("# Project\n\nIts [documentation](docs/README.md).\n")
    (tmp_path / "docs" / "README.md").write_text("# Documentation\n\n**Use it**\n\n- [Other](other.md): a page\n")
    (tmp_path / "docs" / "other.md").write_text(f"# Other\n\n{links}\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(site, "LISTS", {})
    assert main(["docs", str(tmp_path / "site")], commands) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(problem in line for problem in ("nowhere.md", "#nothing", "lost.png")), line


def test_docs_page_prints_it_with_its_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "--page", "adapters"], commands) == 0
    printed = capsys.readouterr().out
    assert "Generated: " not in printed
    assert generate.texts(["ways"])["ways"] in printed
    assert main(["docs", "--page", "../README"], commands) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "there is no page '../README'; there are adapters, " in line


def test_index_names_every_page() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text("utf-8")))
    assert named == {page.name for page in DOCS} - {"README.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_checkout_have_targets(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(((?!https?:)[^)#\s]*(?:#[^)\s]*)?)\)", text):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
            assert anchor in anchors or f'id="{anchor}"' in linked.read_text("utf-8"), target


def test_committed_tables_and_schema_are_up_to_date() -> None:
    assert generate.stale(write=False) == [], "run `python -m tools pages`"


def test_pages_with_a_stale_block_writes_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    page.write_text("Above.\n<!-- ranks: begin -->\nold\n<!-- ranks: end -->\nBelow.\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.stale(write=False) == ["README.md"]
    assert "\nold\n" in page.read_text()
    assert main(["pages"], commands) == 0
    assert page.read_text().startswith("Above.\n<!-- ranks: begin -->\n")
    assert "\n| family | jax `sharded` |" in page.read_text()
    assert page.read_text().endswith("<!-- ranks: end -->\nBelow.\n")
    assert generate.stale(write=False) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- ranks: begin -->\n", "there is no <!-- ranks: begin --> … <!-- ranks: end -->"),
        ("<!-- score: begin --><!-- score: end -->", "nothing makes a block 'score'"),
    ],
)
def test_pages_of_a_wrong_readme_is_refused_in_one_line(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text(text)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert main(["pages"], commands) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert page.read_text() == text


def test_place_of_a_block_leaves_placeholders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").touch()
    page = tmp_path / "docs" / "some.md"
    blank = generate.PLACEHOLDER.format("some")
    page.write_text(f"<!-- a: begin -->\nold\n<!-- a: end -->\n<!-- b: begin -->\n{blank}\n<!-- b: end -->\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    generate.place({"a": "new", "b": "new"})
    assert page.read_text() == f"<!-- a: begin -->\nnew\n<!-- a: end -->\n<!-- b: begin -->\n{blank}\n<!-- b: end -->\n"
    with pytest.raises(generate.PageError, match="no page has <!-- such a block: begin -->"):
        generate.place({"such a block": ""})


def test_page_of_findings_has_every_finding_clause_and_workaround() -> None:
    known = load_known()
    page, _, workarounds = summaries.causes().partition("## Workarounds")
    assert sum(line.startswith("- ") for line in page.splitlines()) == len(known.findings)
    assert all(f"`{entry.clause}`" in page for entry in known.expectations)
    _, *rows = (line for line in workarounds.splitlines() if line.startswith("| "))
    assert len(rows) == len(known.workarounds)
    assert all(workaround.does in "\n".join(rows) for workaround in known.workarounds)


def test_techniques_are_the_families() -> None:
    assert {*summaries.TECHNIQUES} == {clause.family for clause in load_clauses().values()}


def test_outcomes_have_a_row_for_every_series() -> None:
    series = {reading.load(path).series for path in list_records(BASELINES)}
    assert len(summaries.blocks()["outcomes"].splitlines()) == 2 + len(series)


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_histories_have_a_plan(path: Path) -> None:
    assert path.with_suffix(".toml").is_file()
    assert sum(column.judged for history in load_histories(path) for column in history.line.columns)


@pytest.mark.parametrize("history", histories(), ids=lambda history: history.line.name)
def test_changes_of_histories_have_an_explanation(history: LineHistory) -> None:
    line = history.line
    result = {f"{line.framework} {point.clause}" for point in history.points if not find_explanations(line, point)}
    assert result <= UNEXPLAINED


def test_example_compares_nearly_all_tests() -> None:
    pair = example()
    common = {verdict.test for verdict in pair.old.verdicts} & {verdict.test for verdict in pair.new.verdicts}
    assert not pair.refusals
    assert pair.compared > 0.945 * len(common) > 600  # 115 tests train other recipes since the old record
