"""What is collected: expressions that select tests, and parameters whose values the framework decides."""

import pytest
from _pytest.mark.expression import Expression

from conformance.checks.combinations import rows
from conformance.known_failures.reading import Known
from conformance.runner.ways import PARAMETERS, Ways
from frameworks.contract import SHIPPED, Framework


def check_expressions(config: pytest.Config) -> None:
    """Reads the expressions of `-k` and `-m`, which every worker would refuse by itself.

    Raises:
        ValueError: an expression is none.
    """
    for option, name in (("-k", "keyword"), ("-m", "markexpr")):
        expression = getattr(config.option, name, "")
        if expression and (problem := problem_of(expression)):
            raise ValueError(f"{option}: got {expression!r}, want an expression such as 'a and not b': {problem}")


def problem_of(expression: str) -> str:
    """Why pytest cannot read an expression, "" if it can."""
    try:
        Expression.compile(expression)
    except SyntaxError as error:
        return str(error.args[0])
    return ""


def parametrize(metafunc: pytest.Metafunc, framework: Framework, known: Known, ways: Ways) -> None:
    """Gives a test the values of its parameters.

    `variant`: every recomputation variant that the framework offers; `row`: every row of its covering array;
    `workaround`: every workaround that its adapter declares; `way`: every way that it declares here;
    `operation_technique` and others of `SHIPPED`: every technique that such parts are judged with.
    """
    if "variant" in metafunc.fixturenames:
        variants = framework.recompute_variants() or (None,)
        metafunc.parametrize("variant", variants, ids=[variant or "default" for variant in variants])
    if "function_way" in metafunc.fixturenames:
        function_ways = tuple(framework.function_ways()) or (None,)
        metafunc.parametrize("function_way", function_ways, ids=[way or "default" for way in function_ways])
    for part in SHIPPED:
        if (name := f"{part[:-1]}_technique") in metafunc.fixturenames:
            supported = framework.declares(SHIPPED[part]).supported
            techniques = framework.get_shipped(part).techniques() if supported else (None,)
            metafunc.parametrize(name, techniques, ids=[technique or "default" for technique in techniques])
    if "workaround" in metafunc.fixturenames:
        metafunc.parametrize(
            "workaround", known.workarounds, ids=[workaround.finding.id for workaround in known.workarounds]
        )
    for name in PARAMETERS.keys() & {*metafunc.fixturenames}:
        chosen_ways = [way for way in ways.offered if PARAMETERS[name](way)]
        metafunc.parametrize(name, chosen_ways, ids=map(str, chosen_ways))
    for name in {"row", "dropping_row"} & {*metafunc.fixturenames}:
        chosen = [row for row in rows(framework) if name == "row" or row.dropout]
        metafunc.parametrize(name, chosen, ids=[row.label for row in chosen])
