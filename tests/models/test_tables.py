"""Data frames: their columns go by name, in whatever order they stand."""

import numpy as np
import pandas as pd
import pytest

import posterity
from posterity.errors import StructureError
from posterity.families.names import names_of
from posterity.models import LinearRegression
from posterity.models.tables import arrays, in_common

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)) * [1.0, 50.0, 0.01]
Y = X @ [1.0, 0.02, 300.0] + RNG.normal(size=40)
ALL = pd.DataFrame(X, columns=["age", "bp", "dose"])
NORTH, SOUTH = ALL[:25], ALL[["dose", "age", "bp"]][25:]
PRIOR = posterity.Gaussian.from_standard(np.zeros(3), np.diag([1.0, 1e-2, 1e6]))
MODEL = LinearRegression(noise_variance=1.0)


def test_columns_in_any_order_are_one_regression() -> None:
    sites = {"north": (NORTH, Y[:25]), "south": (SOUTH, pd.Series(Y[25:], SOUTH.index))}
    run = posterity.federate(sites, MODEL, PRIOR)
    precision = np.linalg.inv(PRIOR.covariance) + X.T @ X
    expected = np.linalg.solve(precision, X.T @ Y)
    np.testing.assert_allclose(run.posterior.mean, expected, rtol=1e-9)
    for named in (run.posterior, run.ledger, run.ledger.posterior, run.ledger.factor("south")):
        assert named.names == ("age", "bp", "dose")
    left = posterity.forget(run, "north").ledger
    assert left.posterior.names == ("age", "bp", "dose")


def test_the_prior_s_names_set_the_order_and_arrays_follow_them() -> None:
    turned = PRIOR.named(["age", "bp", "dose"])
    with pytest.warns(UserWarning, match=r"\['s'\]"):
        names, prior = in_common({"n": (SOUTH, Y[25:]), "s": (X[:25], Y[:25])}, turned)
    assert prior is turned
    np.testing.assert_array_equal(arrays((SOUTH, Y[25:]), names)[0], X[25:])


def test_personal_columns_by_name() -> None:
    sites = {"north": (NORTH, Y[:25]), "south": (SOUTH, Y[25:])}
    run = posterity.federate(sites, MODEL, PRIOR, personal={"bp": 0.01}, steps=0)
    assert names_of(run.posterior)["log_spread"] == ("bp",)
    assert run.agreement.model.personal == (1,)
    with pytest.raises(posterity.errors.UsageError, match="'height'"):
        posterity.federate(sites, MODEL, PRIOR, personal=["height"], steps=0)


@pytest.mark.parametrize(
    ("frame", "error", "words"),
    [
        (SOUTH.rename(columns={"bp": "pressure"}), StructureError, "'pressure'"),
        (SOUTH[["dose", "age"]], StructureError, r"\['bp'\] missing"),
        (SOUTH.assign(bp="high"), StructureError, r"columns \['bp'\].* data of site 'south'"),
        (pd.concat([SOUTH, SOUTH[["bp"]]], axis=1), StructureError, "come twice"),
    ],
)
def test_tables_that_do_not_fit(frame: pd.DataFrame, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        posterity.federate({"north": (NORTH, Y[:25]), "south": (frame, Y[25:])}, MODEL, PRIOR)


def test_arrays_beside_tables_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"no names of columns at \['south'\]"):
        in_common({"north": (NORTH, Y[:25]), "south": (X[25:], Y[25:])}, PRIOR)
