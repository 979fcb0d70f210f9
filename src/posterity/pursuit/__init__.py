"""Mixtures grown by maximum entropy, and learning task after task."""

from posterity.pursuit.pursue import pursue
from posterity.pursuit.result import Pursuit, Row
from posterity.pursuit.reweighting import Weighted, reweighted
from posterity.pursuit.schedules import Best, Fixed, Flatness, LambdaSchedule, Schedule
from posterity.pursuit.target import Function, Joint, Target

__all__ = [
    "Best",
    "Fixed",
    "Flatness",
    "Function",
    "Joint",
    "LambdaSchedule",
    "Pursuit",
    "Row",
    "Schedule",
    "Target",
    "Weighted",
    "pursue",
    "reweighted",
]
