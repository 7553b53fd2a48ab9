"""Runs one framework's part of a scenario in a new process, since no two frameworks share one.

`python -m conformance.scenarios.worker SCENARIO FRAMEWORK DEVICE MODE ROUNDS FOLDER` trains, writes the record, and
prints progress and the record's path on lines that begin with `SAYS`. ROUNDS 0 trains all of them, MODE "" is the
scenario's choice.

Exit status: 0; 1, a side failed; 2, the framework cannot be loaded; 3, it has no part in the scenario; of 2 and 3
the last line of standard error says why.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

from conformance.runner.identity import name_of, series, suite, variant
from conformance.scenarios import SCENARIOS, Scenario
from conformance.scenarios.judgement import measurements, traces, verdicts
from conformance.scenarios.training import train
from frameworks.contract import Framework, MissingDevice, Unsupported
from frameworks.registry import UnknownFramework, load
from results.record.files import RecordError, unwritable
from results.record.journal import now
from results.record.model import Record
from results.record.reading import write
from results.record.texts import ClauseText

SAYS = "scenario: "
CANNOT, NO_PART = 2, 3


def run(scenario: Scenario, given: str, framework: Framework, limit: int) -> Record:
    """Trains every side and returns the record.

    Args:
        given: the framework as the user named it.
        limit: the largest number of rounds, 0 for all.
    Raises:
        Unsupported: the first side cannot be trained here.
    """
    started, clock = now(), time.perf_counter()
    setting = scenario.setting()
    whole = scenario.rounds_on(framework.device, framework.mode, setting)
    rounds = min(limit, whole) if limit else whole
    _say({"rounds": rounds * len(scenario.stretches)})
    results = train(framework, scenario, setting, rounds, lambda done: _say({"done": done}))
    if isinstance(results[0].error, Unsupported):
        raise results[0].error
    words = ["--scenario", scenario.name, *(["--rounds", str(rounds)] if rounds < whole else [])]
    modes = ["--mode", framework.mode, "--device", framework.device]
    repro = shlex.join(["python", "-m", "conformance", "run", *words, *modes, given])
    text = ClauseText("MEASUREMENT", scenario.title, scenario.source, (), "scenario")
    return Record(
        suite=suite(given, (scenario.clause,), ()),
        series=series(given, framework),
        variant=variant(framework),
        started=started,
        seed=scenario.sides[0].recipe.seed,
        selection=" ".join(words),
        clauses={scenario.clause: text},
        finished=now(),
        duration_s=round(time.perf_counter() - clock, 3),
        status="complete",
        verdicts=verdicts(framework, scenario, setting, results, rounds, repro),
        measurements=measurements(scenario, results),
        traces=traces(scenario, results),
        notes=(setting.about, _length(scenario, rounds, scenario.rounds(setting))),
    )


def _length(scenario: Scenario, rounds: int, wanted: int) -> str:
    text = f"{rounds:,} rounds of {scenario.batch:,} samples"
    return text if rounds == wanted else f"{text}, of {wanted:,}"


def _bound(scenario: Scenario, name: str, device: str, mode: str) -> Framework:
    framework = load(name, device, mode or None)
    own = scenario.modes.get(framework.name)
    if own is None and scenario.only:
        raise _NoPart(scenario.only)
    if own is not None and not mode and own != framework.mode:
        framework = load(name, device, own)
    return framework


def _place(folder: Path, name: str) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    return folder / f"{name}.json.gz"


class _NoPart(Exception):
    """The framework has no part in the scenario; the message says why."""


def _say(said: dict[str, object]) -> None:
    print(f"{SAYS}{json.dumps(said)}", flush=True)


def main(name: str, given: str, device: str, mode: str, limit: str, folder: str) -> int:
    """Runs a scenario of `SCENARIOS` and returns the exit status."""
    scenario = SCENARIOS[name]
    try:
        framework = _bound(scenario, given, device, mode)
        place = _place(Path(folder) / scenario.name, name_of(series(given, framework), framework.version()))
        record = run(scenario, given, framework, int(limit))
        write(place, record)
    except (UnknownFramework, MissingDevice, RecordError, ValueError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return CANNOT
    except ModuleNotFoundError as error:
        print(f"{error.name} is missing: `conformance doctor` names what to install", file=sys.stderr)
        return CANNOT
    except (_NoPart, Unsupported) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return NO_PART
    _say({"record": str(place)})
    return int(any(verdict.outcome.bad for verdict in record.verdicts))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
