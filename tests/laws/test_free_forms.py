"""Members as a search moves them are the laws that come out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity.families import (
    Beta,
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    Gamma,
    Gaussian,
    LowRankGaussian,
    NormalWishart,
    Plate,
    Product,
)
from posterity.families.free_forms import flat, form_of, shaped
from posterity.pursuit.search import nodes_of
from tests.laws.table import close, identical

RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(3, 3))
LAWS: dict[str, Any] = {
    "diagonal": DiagonalGaussian.from_standard([1.0, -2.0], [0.3, 5.0]),
    "full": Gaussian.from_standard([1.0, 2.0, 3.0], ROOT @ ROOT.T + np.eye(3)),
    "low rank": LowRankGaussian.from_standard(
        [1.0, 2.0, 3.0], RNG.normal(size=(3, 2)), [0.1, 1.0, 2.0]
    ),
    "blocks": Product(
        a=Gaussian.from_standard([0.5], [[2.0]]), b=DiagonalGaussian.from_standard([0.0], [3.0])
    ),
    "with a scale": Product(
        a=DiagonalGaussian.from_standard([0.5], [2.0]), s=Gamma.from_standard(2.0, 3.0)
    ),
    "gamma": Gamma.from_standard(2.0, 0.5),
    "beta": Beta.from_standard(2.0, 3.0),
    "dirichlet": Dirichlet.from_standard([1.0, 2.0, 3.0]),
    "normal-Wishart": NormalWishart.from_standard(np.zeros(2), 2.0, np.eye(2), 5.0),
    "plate": Plate(Gamma.from_standard([1.0, 2.0], [3.0, 0.5])),
}


LONG = ("blocks", "dirichlet", "normal-Wishart", "plate")
"""Laws whose programs take seconds to compile, and that are moved by the code of the others."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in LAWS]
)
def test_parameters_are_the_laws(name: str) -> None:
    """There and back, density and entropy; moved by nothing they stay, and by little they move."""
    law = LAWS[name]
    form = form_of(law)
    with jax.enable_x64(True):
        own, z = form.parameters(law), jax.jit(lambda law: law.sample(jax.random.key(0)))(law)
        again = form.law(own, law)
        move = jax.jit(form.move)
        other = move(own, np.full(form.moves, 0.1))
        moved = form.law(other, law)
        said = jax.jit(lambda own, z: (form.log_prob(own, flat(z)), form.entropy(own)))
        known = jax.jit(lambda law, z: (law.log_prob(z), law.entropy()))
        for found, parameters in ((again, own), (moved, other)):
            np.testing.assert_allclose(said(parameters, z), known(found, z), rtol=1e-9)
        still = move(own, np.zeros(form.moves))
        assert flat(z).shape == (form.size,)
        close(shaped(flat(z), z), z)
        if name in ("diagonal", "full"):
            halve = jax.jit(lambda own: (form.deviation(form.narrowed(own)), form.deviation(own)))
            halved, whole = map(np.asarray, halve(own))
            np.testing.assert_allclose(halved, whole / 2, rtol=1e-9)
    close(again, law, rtol=1e-9, atol=1e-12)
    close(still, own, rtol=1e-12)
    assert not identical(moved, law)


@pytest.mark.parametrize("name", [name for name in LAWS if form_of(LAWS[name]).smooth])
def test_nodes_have_the_moments_of_the_law_and_members_can_be_placed(name: str) -> None:
    """As whitened nodes do: the mean and the variances come out to the last digits."""
    law = LAWS[name]
    form = form_of(law)
    with jax.enable_x64(True):

        def found(own: Any, nodes: Any) -> Any:
            draws = jax.vmap(lambda noise: form.draw(own, noise))(nodes)
            middle, one = (form.draw(own, at(form.noise_size)) for at in (jnp.zeros, jnp.ones))
            return draws, middle, one, form.deviation(own)

        program = jax.jit(found)
        z, mean, one, deviation = program(form.parameters(law), nodes_of(form, 128))
        _, middle, _, wide = program(form.place(one, deviation), nodes_of(form, 128))
    z, mean, deviation = map(np.asarray, (z, mean, deviation))
    close(middle, one, rtol=1e-7)
    close(wide, deviation, rtol=0.1)
    np.testing.assert_allclose(z.mean(0), mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(z.std(0), deviation, rtol=1e-9)


def test_a_whole_covariance_is_kept() -> None:
    form = form_of(LAWS["full"])
    with jax.enable_x64(True):
        law = form.law(form.place(np.zeros(3), np.ones(3), ROOT), LAWS["full"])
    np.testing.assert_allclose(law.covariance, ROOT @ ROOT.T, rtol=1e-9)


@pytest.mark.parametrize(
    "law",
    [
        Gaussian.from_standard([0.0, 0.0], np.diag([1.0, 1e-20])),
        LowRankGaussian.from_standard([0.0, 0.0], [[1.0], [1.0]], [1e-20, 1.0]),
        DiagonalGaussian.from_standard([0.0, 0.0], [1.0, 1e-20]),
        Product(
            b=Gaussian.from_standard([0.0], [[1.0]]),
            a=DiagonalGaussian.from_standard([0.0], [1e-20]),
        ),
    ],
    ids=["full", "low rank", "diagonal", "blocks"],
)
def test_collapse_is_seen(law: Any) -> None:
    form = form_of(law)
    with jax.enable_x64(True):
        assert form.narrowest(form.parameters(law), np.ones(2)) == pytest.approx(1e-10, rel=1e-3)
        if isinstance(law, Gaussian):  # marginal deviations of one, and a difference of 1e-10
            parameters = (np.zeros(2), np.array([[1.0, 0.0], [1.0, 1e-10]]))
            assert form.narrowest(parameters, np.ones(2)) < 1e-9


def test_log_odds_are_free_and_labels_are_not_searched() -> None:
    q = Categorical.from_standard([[0.25, 0.5, 0.25], [0.1, 0.1, 0.8]])
    free = q.free_parameters()
    assert free.shape == (2, q.free_size) and q.with_free_parameters(free) == q
    assert form_of(q) is None
