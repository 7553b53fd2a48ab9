"""Ranks as worker processes: started once, reused for many runs, and ended together if one fails."""

from frameworks.ranks.messages import Limits, group_seconds
from frameworks.ranks.worker_group import RemoteMeshes, RemoteRankGroup, WorkerGroup, close_all, worker_group_of
