"""Mixtures grown by maximum entropy, and learners of successive tasks."""

from posterity.pursuit.pursue import pursue as pursue
from posterity.pursuit.result import Pursuit as Pursuit
from posterity.pursuit.result import Row as Row
from posterity.pursuit.reweighting import Weighted as Weighted
from posterity.pursuit.reweighting import reweighted as reweighted
from posterity.pursuit.schedules import Best as Best
from posterity.pursuit.schedules import Fixed as Fixed
from posterity.pursuit.schedules import Flatness as Flatness
from posterity.pursuit.schedules import LambdaSchedule as LambdaSchedule
from posterity.pursuit.schedules import Schedule as Schedule
from posterity.pursuit.target import Function as Function
from posterity.pursuit.target import Joint as Joint
from posterity.pursuit.target import Target as Target
