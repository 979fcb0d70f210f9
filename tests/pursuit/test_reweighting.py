"""Weighted draws: moments in closed form, and tails that weights cannot mend."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from posterity.errors import ParameterError
from posterity.families import DiagonalGaussian, Mixture
from posterity.pursuit import reweighted

MIXTURE = Mixture.from_standard([1.0], DiagonalGaussian.from_standard([[0.5, 1.0]], [[4.0, 4.0]]))


def quartic(z: Any) -> Any:
    """Two independent coordinates of mean zero; the fourth moment is one."""
    return -(z**4).sum() / 4


def test_moments_become_those_of_the_target() -> None:
    """Within four standard errors of as many draws of the target as count."""
    found = reweighted(MIXTURE, quartic)
    assert found.reliable and found.weights.sum() == pytest.approx(1)
    count = found.effective * len(found.weights)
    variance = 2 * scipy.special.gamma(0.75) / scipy.special.gamma(0.25)
    assert 1000 < count < 10_000
    np.testing.assert_allclose(found.mean(), 0.0, atol=4 * np.sqrt(variance / count))
    error = np.sqrt((1 - variance**2) / count)
    np.testing.assert_allclose(found.variance(), variance, atol=4 * error)


def test_what_weights_cannot_mend_is_said() -> None:
    cauchy = lambda z: -2 * jnp.log1p(z**2 / 0.01).sum() + 60 * (z[0] > 5)
    assert not reweighted(MIXTURE, cauchy).reliable
    assert reweighted(MIXTURE, lambda z: MIXTURE.log_prob(z) + 3.0).effective == pytest.approx(1)
    for bad in (-jnp.inf, jnp.nan, jnp.inf):
        with pytest.raises(ParameterError, match="finite at no draw"):
            reweighted(MIXTURE, jax.tree_util.Partial(lambda bad, z: bad + 0 * z[0], bad))
