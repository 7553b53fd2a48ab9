"""Ranks as worker processes: started once, reused for many runs, and ended together if one fails."""

from frameworks.ranks.company import RemoteCompany
from frameworks.ranks.crew import Crew
from frameworks.ranks.limits import LIMITS, Limits, group_seconds
from frameworks.ranks.living import close_all, crew_of
from frameworks.ranks.membership import Member, SeveralRanks

__all__ = [
    "LIMITS",
    "Crew",
    "Limits",
    "Member",
    "RemoteCompany",
    "SeveralRanks",
    "close_all",
    "crew_of",
    "group_seconds",
]
