"""Members as a search moves them are the laws that come out."""

from typing import Any

import jax
import numpy as np
import pytest

from posterity.families import DiagonalGaussian, Gamma, Gaussian
from posterity.families.free_forms import form_of
from posterity.pursuit.search import nodes_of
from tests.laws.table import close, identical

RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(3, 3))
LAWS: dict[str, Any] = {
    "diagonal": DiagonalGaussian.from_standard([1.0, -2.0], [0.3, 5.0]),
    "full": Gaussian.from_standard([1.0, 2.0, 3.0], ROOT @ ROOT.T + np.eye(3)),
}


@pytest.mark.parametrize("name", LAWS)
def test_parameters_are_the_laws(name: str) -> None:
    """There and back, density and entropy; moved by nothing they stay, and by little they move."""
    law = LAWS[name]
    form: Any = form_of(law)
    own = form.parameters(law)
    z = np.asarray(law.sample(jax.random.key(0)))
    again = form.law(own, law)
    other = form.move(own, np.full(form.moves, 0.1))
    moved = form.law(other, law)
    for found, parameters in ((again, own), (moved, other)):
        np.testing.assert_allclose(form.log_prob(parameters, z), found.log_prob(z), rtol=1e-9)
        np.testing.assert_allclose(form.entropy(parameters), found.entropy(), rtol=1e-9)
    assert z.shape == (form.size,)
    halved = form.deviation(form.narrowed(own))
    np.testing.assert_allclose(halved, form.deviation(own) / 2, rtol=1e-9)
    close(again, law, rtol=1e-9, atol=1e-12)
    close(form.move(own, np.zeros(form.moves)), own, rtol=1e-12)
    assert not identical(moved, law)


@pytest.mark.parametrize("name", LAWS)
def test_nodes_have_the_moments_of_the_law_and_members_can_be_placed(name: str) -> None:
    """As whitened nodes do: the mean and the variances come out to the last digits."""
    law = LAWS[name]
    form: Any = form_of(law)
    own = form.parameters(law)
    nodes = nodes_of(form, 128)
    z = form.draw(own, nodes)
    np.testing.assert_allclose(z.mean(0), own[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(z.std(0), form.deviation(own), rtol=1e-9)
    one = form.draw(own, np.ones(form.size))
    placed = form.place(one, form.deviation(own))
    np.testing.assert_array_equal(placed[0], one)
    np.testing.assert_allclose(form.deviation(placed), form.deviation(own), rtol=0.1)


def test_a_whole_covariance_is_kept() -> None:
    form: Any = form_of(LAWS["full"])
    with jax.enable_x64(True):
        law = form.law(form.place(np.zeros(3), np.ones(3), ROOT), LAWS["full"])
    np.testing.assert_allclose(law.covariance, ROOT @ ROOT.T, rtol=1e-9)


@pytest.mark.parametrize(
    "law",
    [
        Gaussian.from_standard([0.0, 0.0], np.diag([1.0, 1e-20])),
        DiagonalGaussian.from_standard([0.0, 0.0], [1.0, 1e-20]),
    ],
    ids=["full", "diagonal"],
)
def test_collapse_is_seen(law: Any) -> None:
    form: Any = form_of(law)
    with jax.enable_x64(True):
        assert form.narrowest(form.parameters(law), np.ones(2)) == pytest.approx(1e-10, rel=1e-3)
        if isinstance(law, Gaussian):  # marginal deviations of one, and a difference of 1e-10
            parameters = (np.zeros(2), np.array([[1.0, 0.0], [1.0, 1e-10]]))
            assert form.narrowest(parameters, np.ones(2)) < 1e-9


def test_other_laws_are_not_searched() -> None:
    assert form_of(Gamma.from_standard(2.0, 0.5)) is None
