"""A class with a likelihood of its own keeps no formula of another likelihood."""

import numpy as np
import pytest

from posterity.errors import UsageError
from posterity.models import BetaBernoulli, LinearRegression, LogisticRegression, PredictorModel


def test_a_likelihood_beside_the_slope_of_another_one_is_refused():
    with pytest.raises(UsageError, match=r"predictor_value_and_slope of LogisticRegression"):

        class Squared(LogisticRegression):
            def predictor_log_likelihood(self, f, y):
                return -0.5 * (f**2 - y) ** 2


def test_a_likelihood_beside_the_factor_of_another_one_is_refused():
    for base, formula in ((LinearRegression, "factor"), (BetaBernoulli, "factor")):
        with pytest.raises(UsageError, match=rf"{formula} of {base.__name__}"):
            type("Half", (base,), {"log_likelihood": lambda self, z, data: 0.0})


def test_a_log_likelihood_that_would_not_be_asked_is_refused():
    with pytest.raises(UsageError, match="predictor_log_likelihood of LogisticRegression"):
        type("Half", (LogisticRegression,), {"log_likelihood": lambda self, z, data: 0.0})


def test_who_says_both_or_changes_something_else_may_derive():
    class Scaled(LogisticRegression):
        def predictor_log_likelihood(self, f, y):
            return super().predictor_log_likelihood(2 * f, y)

        def predictor_value_and_slope(self, f, y):
            value, slope = super().predictor_value_and_slope(2 * f, y)
            return value, 2 * slope

    class Choosy(BetaBernoulli):
        def admits(self, q):
            return np.asarray(q.a > 1)

    class Plain(PredictorModel):
        def predictor_log_likelihood(self, f, y):
            return -((y - f) ** 2)

    for model in (Scaled(), Choosy(), Plain()):
        assert isinstance(model, PredictorModel | BetaBernoulli)
