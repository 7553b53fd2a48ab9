"""The wheel: one importable name, the whole suite behind it, and nothing of a user's project in its way."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from conformance.runner import identity
from results.record.reading import load
from tests.support.suite_runs import Ended, run

CLAUSE = "scaling.skip-is-atomic"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the content of the wheel, which nobody may write to."""
    folder = tmp_path_factory.mktemp("site")
    built = "from hatchling.build import build_wheel; import sys; build_wheel(sys.argv[1])"
    run([sys.executable, "-c", built, str(folder)])
    (wheel,) = folder.iterdir()
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    assert wheel.stat().st_size < 8 * 2**20
    wheel.unlink()
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555)
    yield folder
    for path in (folder, *filter(Path.is_dir, folder.rglob("*"))):
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose folders have the names of the suite's."""
    for name in ("fixtures", "frameworks", "results", "locks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the project is imported')\n")
    return tmp_path


def call(site: Path, project: Path, *words: str) -> Ended:
    """Runs Python in the project, with the wheel as the only place of the suite."""
    where = {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(project / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    return run([sys.executable, *words], project, PYTEST_DISABLE_PLUGIN_AUTOLOAD="", **where)


def test_installation_has_one_importable_name_and_knows_the_suite_from_any_folder(site: Path, project: Path) -> None:
    names = {path.name for path in site.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"conformance"}
    program = (
        "from conformance.cli import main; assert main(['spec', 'list']) == 0;"
        "from conformance.runner.identity import suite; print(suite('torch', (), ()).areas);"
    )
    ended = call(site, project, "-c", program)
    assert (ended.status, ended.errors) == (0, "")
    assert CLAUSE in ended.output
    assert ended.output.endswith(f"\n{identity.suite('torch', (), ()).areas}\n")
    asked = "import importlib.util as u; print(*[n for n in ('fixtures', 'frameworks', 'results') if u.find_spec(n)])"
    assert call(site, project / "locks", "-c", asked).output == "\n"


def test_run_in_any_folder_writes_there_alone(site: Path, project: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in site.rglob("*")}
    words = ("-m", "conformance", "run", "reference", "--record=mine/record.json", "conformance/suites/scaling")
    ended = call(site, project, *words, "--numprocesses=0", "-k", f"{CLAUSE} and nan")
    assert ended.status == 0, ended.lines
    record = load(project / "mine" / "record.json")
    assert {verdict.clause for verdict in record.verdicts} == {CLAUSE}
    assert record.verdicts[0].repro.startswith("conformance run reference --device=cpu --mode=emulated --seed=0 ")
    assert record.suite.commit == ""
    written = {path.name for path in project.iterdir()} - {"fixtures", "frameworks", "results", "locks"}
    assert written <= {"mine", "cache"}
    assert {path: path.stat().st_mtime_ns for path in site.rglob("*")} == before
