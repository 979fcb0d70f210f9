"""Learners by the name of their rule."""

from typing import Any

from posterity.arguments import one_of
from posterity.errors import UsageError
from posterity.pursuit.learning.base import Learner
from posterity.pursuit.learning.conjugate import ConjugateLearner
from posterity.pursuit.learning.mixture import GatedLearner, MixtureLearner
from posterity.pursuit.learning.replay import ReplayLearner

RULES: dict[str, type[Learner]] = {
    "conjugate": ConjugateLearner,
    "gated": GatedLearner,
    "mixture": MixtureLearner,
    "replay": ReplayLearner,
}
RULE = one_of(*RULES)


def learner(rule: str = "conjugate", **options: Any) -> Learner:
    """A learner of tasks that come one after another, before its first task.

    Args:
        rule: ``"conjugate"`` (:class:`ConjugateLearner`, the default, since nothing else was more
            accurate, better calibrated or faster when measured: sums of fixed features),
            ``"gated"`` (:class:`GatedLearner`: a network a task, weighed by where an input lies),
            ``"mixture"`` (:class:`MixtureLearner`: the slides', constant weights), ``"replay"``
            (:class:`ReplayLearner`: a few records of each task are kept).
        options: arguments of the class: ``classes`` of the conjugate and replay rules, ``layers``
            of the others.

    Raises:
        UsageError: for another rule, and options that it does not have.

    >>> import numpy as np
    >>> x = np.array([[0.0], [0.1], [1.0], [1.1]])
    >>> first = learner(classes=3).observe("first", x, np.array([0, 0, 1, 1]))
    >>> first.tasks, first.seen
    (('first',), array([0, 1]))
    """
    RULE.check(rule=rule)
    try:
        return RULES[rule](**options)
    except TypeError as error:
        raise UsageError(
            found=f"options {sorted(options)} of the rule {rule!r} ({error})",
            expected=f"arguments of {RULES[rule].__name__}",
            fix=f"See help(posterity.pursuit.learning.{RULES[rule].__name__}).",
        ) from error
