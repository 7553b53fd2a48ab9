"""Laws: any program of verbs, on any model, under any recipe, does what the oracle does.

`programs` says what a case is, `drawing` draws cases, `player` plays one on a framework or on the oracle, `comparing`
judges the states that two plays went through, `attribution` names the clause that a difference breaks, `variations`
plays a case in another way that has to end alike, `features` names what a case holds.
"""
