"""Why an input has its point on the map: heat maps and attacks, with torch.

Unlike the rest of the core this needs the watched classifier itself, as a torch module.
"""

from darksight_core.explain.attack import Attack, attack
from darksight_core.explain.attribution import Attribution, gradient, integrated, smooth
from darksight_core.explain.chain import POINTS, Chain, ClassifierError
from darksight_core.explain.modules import load_classifier
from darksight_core.explain.objectives import Objective, log_class, log_density, log_kde, nearness

__all__ = [
    "POINTS",
    "Attack",
    "Attribution",
    "Chain",
    "ClassifierError",
    "Objective",
    "attack",
    "gradient",
    "integrated",
    "load_classifier",
    "log_class",
    "log_density",
    "log_kde",
    "nearness",
    "smooth",
]
