"""Generated programs: any verbs, on any model, under any recipe, match the oracle.

`case` defines a case, `strategies` generate cases, `executor` runs one on a framework, `ensemble` on the oracle,
`judge` compares two runs, `triage` names the clause that a difference breaks, `variations` run a case in another way
that must give the same result, and `features` name the properties of a case.
"""
