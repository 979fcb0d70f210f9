"""Mixtures grown by maximum entropy, and learning task after task."""

from posterity.pursuit.learning import Learner, learner
from posterity.pursuit.pursue import Progress, pursue
from posterity.pursuit.result import Pursuit, Row, Status
from posterity.pursuit.target import Function, Joint, Target
from posterity.pursuit.tempers import Best, Fixed, Flatness, Schedule, Temper

__all__ = [
    "Best",
    "Fixed",
    "Flatness",
    "Function",
    "Joint",
    "Learner",
    "Progress",
    "Pursuit",
    "Row",
    "Schedule",
    "Status",
    "Target",
    "Temper",
    "learner",
    "pursue",
]
