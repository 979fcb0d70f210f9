"""Learning task after task, by rules of several kinds: see :func:`learner`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posterity.pursuit.learning.base import Learner
    from posterity.pursuit.learning.conjugate import ConjugateLearner
    from posterity.pursuit.learning.features import (
        Features,
        ImageFeatures,
        OwnFeatures,
        VectorFeatures,
    )
    from posterity.pursuit.learning.mixture import GatedLearner, MixtureLearner
    from posterity.pursuit.learning.replay import ReplayLearner
    from posterity.pursuit.learning.rules import learner

_HOME = {
    "ConjugateLearner": "conjugate",
    "Features": "features",
    "GatedLearner": "mixture",
    "ImageFeatures": "features",
    "Learner": "base",
    "MixtureLearner": "mixture",
    "OwnFeatures": "features",
    "ReplayLearner": "replay",
    "VectorFeatures": "features",
    "learner": "rules",
}

__all__ = [
    "ConjugateLearner",
    "Features",
    "GatedLearner",
    "ImageFeatures",
    "Learner",
    "MixtureLearner",
    "OwnFeatures",
    "ReplayLearner",
    "VectorFeatures",
    "learner",
]


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): a conjugate learner needs no networks."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
