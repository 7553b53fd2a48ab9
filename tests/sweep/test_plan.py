"""Plans: every key, and one line with the place for anything that is not as docs/sweep.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from conformance.sweep.index import Release, ReleaseFile
from conformance.sweep.plan import SweepPlan, read_plan, seconds_of, selection_text
from conformance.sweep.versions import chosen, read_rule
from results.record.files import RecordError

WHOLE = """
name = "both"
selection = "--tests quick -k 'scaling and not laws'"
limit = "20m"
seed = 3
repeat = false

[[cells]]
framework = "tf"
package = "Keras"
framework-version = "2.21.0"
versions = ["3.14.0", "minor >=3.3", "latest 2"]
companions = [{ NumPy = "2.3.5" }, {}]
modes = ["graph", "eager"]
ways = [[], ["clip.two-calls"]]
devices = ["cpu", "cuda"]
"""
CELLS = '[[cells]]\nframework = "jax"\nversions = ["1.0"]\n'


def plan_of(folder: Path, text: str) -> SweepPlan:
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return read_plan(path)


def test_every_key_is_read(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, WHOLE)
    assert (plan.name, plan.limit_s, plan.seed, plan.repeat) == ("both", 1200.0, 3, False)
    assert plan.selection == ("--tests=quick", "-k", "scaling and not laws")
    assert selection_text(plan.selection) == "--tests=quick -k scaling and not laws"
    (group,) = plan.groups
    assert (group.framework, group.package, group.framework_version) == ("tf", "keras", "2.21.0")
    assert group.versions == ("3.14.0", "minor >=3.3", "latest 2")
    assert group.companions == ({"numpy": "2.3.5"}, {})
    assert (group.modes, group.ways, group.devices) == (("graph", "eager"), ((), ("clip.two-calls",)), ("cpu", "cuda"))


def test_the_defaults_are_those_of_one_framework(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, CELLS)
    assert (plan.name, plan.selection, plan.limit_s, plan.seed, plan.repeat) == ("plan", (), 1800.0, 0, True)
    (group,) = plan.groups
    assert (group.package, group.framework_version, group.modes, group.ways) == ("", "", (), ((),))
    assert (group.companions, group.devices) == (({},), ("cpu",))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Object missing required field `cells`"),
        ("cells = []", "cells: Expected `array` of length >= 1"),
        (f"colour = 1\n{CELLS}", "Object contains unknown field `colour`"),
        (f"name = 3\n{CELLS}", "name: Expected `str`, got `int`"),
        (f'name = "../x"\n{CELLS}', "name: got '../x', want letters"),
        (f"seed = -1\n{CELLS}", "seed: Expected `int` >= 0"),
        (f'seed = "0"\n{CELLS}', "seed: Expected `int`, got `str`"),
        (f'limit = "soon"\n{CELLS}', "limit: got 'soon', want a time such as 20m"),
        (f'selection = "conformance/suites"\n{CELLS}', "selection: got 'conformance/suites', want options among"),
        (f'selection = "-k"\n{CELLS}', "selection: got '-k', want options among"),
        (f'selection = "--record=x"\n{CELLS}', "selection: got '--record=x', want options among"),
        (f'selection = "-k \'a"\n{CELLS}', "selection: No closing quotation"),
        (f'name = ""\n{CELLS}', "name: Expected `str` of length >= 1"),
        (
            f"selection = \"-k 'and and'\"\n{CELLS}",
            "selection: got -k 'and and', want an expression of pytest (expected",
        ),
        (f'selection = "-m=("\n{CELLS}', "selection: got -m '(', want an expression of pytest (expected"),
        (f"{CELLS}modes = []", "cells[0].modes: Expected `array` of length >= 1"),
        (f"{CELLS}mode = 'x'", "cells[0]: Object contains unknown field `mode`"),
        (f"{CELLS}{CELLS}modes = 'x'", "cells[1].modes: Expected `array`, got `str`"),
        (f"{CELLS}modes = ['-x']", "cells[0].modes: got '-x', want a name"),
        (f"{CELLS}ways = []", "cells[0].ways: got [], want at least one entry"),
        (f"{CELLS}devices = []", "cells[0].devices: Expected `array` of length >= 1"),
        (f"{CELLS}companions = [{{ flax = '?' }}]", "cells[0].companions.flax: got '?', want a version"),
        (f"{CELLS}companions = [{{ '-e' = '1' }}]", "cells[0].companions: got '-e', want the name of a package"),
        (f"{CELLS}package = '-r x'", "cells[0].package: got '-r x', want the name of a package"),
        (f"{CELLS}framework-version = '1'", "cells[0].framework-version: got '1', want it next to `package` alone"),
        (
            f"{CELLS}package = 'x'\nframework-version = 'new'",
            "cells[0].framework-version: got 'new', want a version or \"of its",
        ),
        ('[[cells]]\nframework = "jax"\nversions = ["1.x"]', "cells[0].versions: got '1.x', want a version, a range"),
        ('[[cells]]\nframework = "jax"\nversions = ["latest 0"]', "cells[0].versions: got 'latest 0', want"),
        (
            CELLS.replace("jax", "fixtures:/../../x"),
            "cells[0].framework: got 'fixtures:/../../x', want an adapter's name",
        ),
        ("[[cells]", "Expected ']]'"),
    ],
)
def test_anything_else_is_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(RecordError) as refused:
        plan_of(tmp_path, text)
    message = str(refused.value)
    assert f"plan.toml: {problem}" in message
    assert message.endswith("docs/sweep.md has the keys of a plan")
    assert "\n" not in message


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("90", 90), ("2m", 120), ("1.5min", 90), ("1h", 3600)])
def test_a_limit_is_a_time(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-3s", "soon", "60 s s", "1e3", "infs"])
def test_any_other_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="want a time such as 60s"):
        seconds_of(text)


def test_a_plan_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecordError, match=r"is no text in UTF-8; name a plan's \.toml file"):
        read_plan(tmp_path / "plan.toml")
    with pytest.raises(RecordError, match="name a plan"):
        read_plan(tmp_path / "nowhere.toml")


# ---------------------------------------------------------------- versions


def releases(*versions: str, yanked: tuple[str, ...] = ()) -> dict[Version, Release]:
    """Releases of one file each, in this order."""
    return {Version(each): Release((ReleaseFile(yanked=each in yanked),)) for each in versions}


@pytest.mark.parametrize(
    ("rules", "want"),
    [
        (["1.1.0"], ["1.1.0"]),
        (["9.9"], ["9.9"]),
        (["1.2.0", "1.1.0", "1.2.0"], ["1.1.0", "1.2.0"]),
        ([">=1.1,<1.3"], ["1.1.0", "1.2.0", "1.2.2"]),
        (["latest"], ["2.0.0"]),
        (["latest 3"], ["1.2.2", "1.3.0", "2.0.0"]),
        (["minor >=1.1"], ["1.1.0", "1.2.2", "1.3.0", "2.0.0"]),
        (["minor <2", "1.2.1"], ["1.0.0", "1.1.0", "1.2.1", "1.2.2", "1.3.0"]),
        (["2.1.0rc1"], ["2.1.0rc1"]),
    ],
)
def test_rules_choose_versions(rules: list[str], want: list[str]) -> None:
    known = releases("1.0.0", "1.1.0", "1.2.0", "1.2.1", "1.2.2", "1.3.0", "2.0.0", "2.1.0rc1", yanked=("1.2.1",))
    assert chosen(map(read_rule, rules), known) == want


@pytest.mark.parametrize("rule", [">=3", "minor >=3", "latest"])
def test_a_rule_that_fits_nothing_is_an_error(rule: str) -> None:
    with pytest.raises(ValueError, match="fits no release"):
        chosen([read_rule(rule)], releases("1.0rc1"))
