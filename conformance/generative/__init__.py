"""Property-based tests: any program of verbs, on any model, under any recipe, matches the oracle.

`programs` defines a case, `drawing` generates cases, `executor` runs one on a framework or on the oracle, `comparing`
compares the states of two runs, `attribution` names the clause that a difference breaks, `variations` runs a case in
another way that must give the same result, `features` names the properties of a case.
"""
