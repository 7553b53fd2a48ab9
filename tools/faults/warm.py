"""Imported once by the process that runs of faults are forked from: what each of them would read again."""

import gc

from conformance.spec.clauses import load_clauses
from conformance.test_ids.inventory import inventory

inventory()
load_clauses()
gc.freeze()
