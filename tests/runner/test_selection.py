"""`--tests quick|core|all`: which tests a selection has, and what its record is called."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from conformance.runner import selection
from conformance.runner.jobs import selects
from conformance.runner.selection import ALL, CORE, QUICK, Selection, WayTests, chosen_ways, durations, path_of
from fixtures.recipe import SGD, Precision, Ranks, Recipe, Recompute
from frameworks.reference import ReferenceFramework
from frameworks.registry import UnknownFramework
from frameworks.ways import FILE, GIVEN, Way, find_installed_ways, load_ways, require_calls, resolve, sets, watch_calls
from results.record.model import Outcome, RunSetup, TestVerdict
from results.record.reading import load
from tests.support.suite_runs import judge

TEST = "scaling.stays-finite/test_holds"
CHOSEN = Selection(quick={TEST: ["1"]}, left_out={TEST: ["0"]})
THREAD = Thread()
LINK = "https://example.org"
PATHS = {
    ("torch", "eager"): "torch-eager",
    ("torch", "compile"): "torch-eager",
    ("paddle", "dygraph"): "paddle-static",
    ("MyLoop", "loop"): "torch-loop",
    ("mine", "fast"): "reference-emulated",
}


def test_selection_has_its_tests_and_core_has_unknown_ones(tmp_path: Path) -> None:
    selection.write(tmp_path / "x.json", CHOSEN)
    chosen = selection.read(tmp_path / "x.json")
    has = {name: [case for case in "0123" if chosen.has(f"{TEST}[{case}]", name)] for name in (QUICK, CORE, ALL)}
    assert has == {QUICK: ["1"], CORE: ["1", "2", "3"], ALL: ["0", "1", "2", "3"]}
    assert selection.read(None).has("a.b/test_c", CORE)


def test_write_of_a_selection_has_a_line_for_each_function(tmp_path: Path) -> None:
    selection.write(tmp_path / "x.json", Selection({"b.c/test_d": ["2", "1"], "a.b/test_c": [""]}, {}))
    expected = '{"quick": {\n"a.b/test_c": [""],\n"b.c/test_d": ["1", "2"]\n},\n"left out of core": {\n\n}}\n'
    assert (tmp_path / "x.json").read_text() == expected


def test_path_of_a_mode_without_a_file_is_the_frameworks_first(tmp_path: Path) -> None:
    assert path_of("torch", "eager", tmp_path) is None
    for name in ("paddle-static", "reference-emulated", "torch-eager", "torch-loop"):
        (tmp_path / f"{name}.json").touch()
    assert {case: getattr(path_of(*case, tmp_path), "stem", "") for case in PATHS} == PATHS


def test_selects_of_arguments_that_select_tests_is_true(tmp_path: Path) -> None:
    for arguments in (["-k", "scaling"], ["-mgpu"], ["a.py::test_b"], [str(tmp_path)], ["--deselect=x"]):
        assert selects(arguments), arguments
    assert not selects(["-x", "--seed=1", "--timeout=5"])


def test_durations_of_a_mode_are_of_the_nearest_baseline(tmp_path: Path) -> None:
    forced = durations("paddle", "dygraph-forced-scaler", "cpu")
    assert forced != durations("paddle", "dygraph", "cpu") != durations("paddle", "nothing", "cpu")
    assert durations("of-somebody-else", "eager", "cpu") == durations("reference", "emulated", "cpu")
    assert durations("torch", "eager", "cpu", tmp_path) == {}


def way(name: str, **calls: dict[str, object]) -> Way:
    technique, _, name = name.partition(".")
    return Way(technique, name, calls or {"json.dumps": {}}, LINK, ("emulated",))


def test_recipe_way_is_that_of_the_technique() -> None:
    recipe = Recipe(clip=1.0, ways=("clip.loop", "save.compressed"))
    assert (recipe.way("clip"), recipe.way("save"), recipe.way("average")) == ("loop", "compressed", "")


@pytest.mark.parametrize(
    ("technique", "recipe", "used"),
    [
        ("clip", Recipe(), False),
        ("clip", Recipe(clip=1.0), True),
        ("autocast", Recipe(precision=Precision("O2", "float16")), False),
        ("autocast", Recipe(precision=Precision("O1", "float16")), True),
        ("recompute", Recipe(recompute=Recompute(2)), True),
        ("backward", Recipe(SGD()), True),
        ("data-parallel", Recipe(ranks=Ranks(2, "optimizer")), True),
        ("data-parallel", Recipe(ranks=Ranks(2, "full")), False),
        ("sharding", Recipe(ranks=Ranks(2, "full")), True),
        ("sharding", Recipe(ranks=Ranks(2, "optimizer")), False),
        ("sharding", Recipe(), False),
    ],
)
def test_recipe_uses_its_techniques(technique: str, recipe: Recipe, used: bool) -> None:
    assert recipe.uses(technique) is used


def test_sets_have_no_technique_twice() -> None:
    a, b, c, d = (way(name) for name in ("clip.a", "clip.b", "save.a", "clip.c"))
    assert sets([a, b, c, d]) == ((a, c), (b,), (d,))
    assert sets([]) == ()


def test_watch_calls_compares_arguments() -> None:
    sorted_keys = Way("save", "sorted", {"json.dumps": {"sort_keys": True}, "json.loads": {}}, LINK, ())
    dumps, loads = resolve("json.dumps"), resolve("json.loads")
    with watch_calls(sorted_keys) as calls:
        dumps({})
        assert set(calls.missing) == {"json.dumps", "json.loads"}
        dumps({}, sort_keys=True)
        assert calls.missing == ("json.loads",)
        loads("1")
    assert calls.missing == ()


@pytest.mark.parametrize(
    ("calls", "act", "missing"),
    [
        ({"json.JSONEncoder": {"indent": 2}}, lambda: resolve("json.JSONEncoder")(indent=2), ()),
        ({"json.dumps": {"indent": GIVEN}}, lambda: resolve("json.dumps")({}), ("json.dumps",)),
        ({"json.dumps": {"indent": GIVEN}}, lambda: resolve("json.dumps")({}, indent=2), ()),
        ({"math.sqrt": {}, "math.floor": {}}, lambda: resolve("math.sqrt")(4.0), ("math.floor",)),
        ({"threading.Thread.name": {}}, lambda: THREAD.name, ("threading.Thread.name",)),
        ({"threading.Thread.name": {}}, lambda: setattr(THREAD, "name", "other"), ()),
    ],
    ids=["constructor", "default", "any value", "without Python code", "property", "setter"],
)
def test_watch_calls_of_a_kind_of_call_notes_it(
    calls: dict[str, dict[str, object]], act: Callable[[], object], missing: tuple[str, ...]
) -> None:
    with watch_calls(Way("save", "some", calls, LINK, ())) as noted:
        act()
    assert noted.missing == missing


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("abc.ABC", r"abc.ABC: a call of ABCMeta cannot be noted"),
        ("fnmatch._compile_pattern", r"_compile_pattern runs its code for new arguments alone"),
    ],
    ids=["class without a constructor", "function whose results are stored, or that a compiler traces"],
)
def test_watch_calls_of_what_does_not_run_at_every_call_raises(call: str, problem: str) -> None:
    with pytest.raises(TypeError, match=problem), watch_calls(Way("save", "x", {call: {}}, LINK, ())):
        pass


def test_find_installed_ways_leaves_out_missing_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = (
        f'[clip.{name}]\ncalls = {{"json.{call}" = {{}}}}\nlink = "x"'
        for name, call in (("gone", "a"), ("here", "dumps"))
    )
    text = "\n".join(('modes = ["m"]', *tables))
    adapter = write_adapter(tmp_path, monkeypatch, text)
    assert [str(item) for item in load_ways(adapter)] == ["clip.gone", "clip.here"]
    assert len({*load_ways(adapter)}) == 2  # subjects, which keep their results by key, have ways
    assert [str(item) for item in find_installed_ways(adapter, "m")] == ["clip.here"]
    assert find_installed_ways(adapter, "other") == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[clip", "ways.toml: "),
        ('modes = ["m"]\n[fly.high]\ncalls = {"a" = {}}\nlink = "x"', "technique: got 'fly', want one of autocast"),
        ('modes = ["m"]\n[clip.a]\ncalls = {}\nlink = "x"', "clip.a: name the calls"),
        ('modes = ["m"]\n[clip.a]\ncalls = {"a" = {}}', "link"),
        ('[clip.a]\ncalls = {"a" = {}}\nlink = "x"', "modes"),
        ('modes = ["m"]\n[clip.a]\ncolour = 1\ncalls = {"a" = {}}\nlink = "x"', "colour"),
        ("modes = 1\nclip = 2", "ways.toml: "),
    ],
)
def test_load_ways_of_a_bad_file_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    with pytest.raises(UnknownFramework) as error:
        load_ways(write_adapter(tmp_path, monkeypatch, text))
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def write_adapter(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    module = f"ways_{abs(hash(text))}"
    (folder / f"{module}.py").write_text("")
    (folder / FILE).write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return f"{module}:Adapter"


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["clip.gone"], "reference has no way 'clip.gone' in mode emulated: one of clip.by-parts"),
        (["set-9"], "has no way 'set-9'"),
        (["set-1", "clip.by-parts"], "want at most one of each technique"),
    ],
)
def test_chosen_ways_of_wrong_names_are_refused(names: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        chosen_ways("reference", ReferenceFramework(), names)


def test_may_use_follows_the_runs_of_a_test() -> None:
    clipped = run_verdict("composition.pairs/a", {"clip": 0.5})
    saved = run_verdict("resume.bit-identical/test_a_saved_run_goes_on", {})
    assert (selection.may_use(clipped, "clip"), selection.may_use(saved, "clip")) == (True, False)
    assert (selection.may_use(clipped, "save"), selection.may_use(saved, "save")) == (False, True)
    assert selection.may_use(run_verdict("a.b/c", {"precision": {"level": "O1"}}), "autocast")
    assert selection.may_use(saved, "backward")


def run_verdict(test: str, recipe: dict[str, object]) -> TestVerdict:
    return TestVerdict(test, test.partition("/")[0], Outcome.PASS, runs=(RunSetup("model", recipe),))


def test_way_tests_of_clipping_are_few() -> None:
    ways = chosen_ways("reference", ReferenceFramework(), ["clip.by-parts"])
    chosen = WayTests(ReferenceFramework(), ways)
    assert 10 < len(chosen.due) < 200


def test_run_with_a_way_records_it(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    chosen = "combination_matches_oracle and clipped and O0 and alone"
    arguments = ("--framework=reference", "--way=clip.by-parts", f"--record={file}", "-k", chosen)
    result = judge(*arguments, "conformance/suites/composition/test_composition.py")
    assert result.status == 0, result.lines
    record = load(file)
    assert record.series.mode == "emulated+clip.by-parts"
    assert all("--way=clip.by-parts" in verdict.repro for verdict in record.verdicts)
    assert all(run.recipe["ways"] == ["clip.by-parts"] for verdict in record.verdicts for run in verdict.runs)


def test_require_calls_of_a_way_that_is_not_called_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'modes = ["m"]\n[sharding.sorted]\ncalls = {"json.dumps" = {sort_keys = true}}\nlink = "x"'
    adapter, recipe = write_adapter(tmp_path, monkeypatch, text), Recipe(ways=("sharding.sorted",))
    with require_calls(adapter, recipe, "sharding"):
        resolve("json.dumps")({}, sort_keys=True)
    with require_calls(adapter, recipe, "data-parallel"):
        pass
    with (
        pytest.raises(RuntimeError, match=r"sharding.sorted: json.dumps was not called"),
        require_calls(adapter, recipe, "sharding"),
    ):
        resolve("json.dumps")({})


def test_run_of_a_mode_collects_no_family_that_the_mode_lacks(tmp_path: Path) -> None:
    package, record = tmp_path / "without_scaling", tmp_path / "r.json"
    package.mkdir()
    (package / "__init__.py").write_text("from frameworks.reference import ReferenceFramework as Adapter", "utf-8")
    (package / "adapter.toml").write_text('lacks = { emulated = ["scaling"] }', "utf-8")
    adapter = f"--framework={package.name}:Adapter"
    result = judge(adapter, f"--record={record}", "-k", "overflow", PYTHONPATH=f"{tmp_path}")
    clauses = {verdict.clause.partition(".")[0] for verdict in load(record).verdicts}
    assert "scaling" not in clauses, result.text
    assert "autocast" in clauses
