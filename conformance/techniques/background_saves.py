"""Saves in the background: the class of the reference that faults replace."""

from conformance.techniques import Technique
from frameworks.reference.framework import ReferenceFramework
from frameworks.reference.training.background import ReferenceSeries

BACKGROUND_SAVES = Technique(places={ReferenceSeries: ("series_class", ReferenceFramework)})
