"""Imported once by the process that runs of faults are forked from: what each of them would read again."""

import gc

from conformance.inventory.tests import inventory
from conformance.spec.clauses import load_clauses

inventory()
load_clauses()
gc.freeze()
