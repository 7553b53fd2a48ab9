"""SciPy's error function and logistic function with their derivatives, for autograd.

autograd has both, in a package whose import takes most of a second for SciPy's statistics and integration.
"""

from __future__ import annotations

import math

import autograd.numpy as anp
from autograd.extend import defvjp, primitive
from scipy import special

erf = primitive(special.erf)
defvjp(erf, lambda _, x: lambda g: 2.0 * g * (1.0 / math.sqrt(math.pi)) * anp.exp(-(x**2)))

logistic = primitive(special.expit)
defvjp(logistic, lambda y, _: lambda g: g * y * (1.0 - y))
