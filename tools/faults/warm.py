"""Imports that runs of faults share: the process that they are forked from makes them once."""

import gc

from conformance.spec.clauses import load_clauses
from conformance.test_ids import inventory

inventory()
load_clauses()
gc.freeze()
