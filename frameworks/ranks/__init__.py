"""Ranks as worker processes: started once, reused for many runs, and ended together if one fails."""

from frameworks.ranks.pool import close_all, worker_group_of
from frameworks.ranks.protocol import LIMITS, Limits, RankWorker, SeveralRanks, group_seconds
from frameworks.ranks.remote_group import RemoteRankGroup
from frameworks.ranks.worker_group import WorkerGroup

__all__ = [
    "LIMITS",
    "Limits",
    "RankWorker",
    "RemoteRankGroup",
    "SeveralRanks",
    "WorkerGroup",
    "close_all",
    "group_seconds",
    "worker_group_of",
]
