"""Ranks as worker processes: started once, reused for many runs, and ended together if one fails."""

from frameworks.ranks.limits import LIMITS, Limits, group_seconds
from frameworks.ranks.pool import close_all, crew_of
from frameworks.ranks.protocol import Member, SeveralRanks
from frameworks.ranks.remote_group import RemoteCompany
from frameworks.ranks.worker_group import Crew

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
