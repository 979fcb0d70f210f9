"""Whatever can be drawn from teaches: laws, ledgers, stored samples."""

import jax
import numpy as np
import pytest
import scipy.special

from posterity.distillation import Draws, Independent, Langevin
from posterity.distillation.teachers import Teacher, as_teacher
from posterity.errors import StructureError, UsageError
from posterity.families import DiagonalGaussian, Gaussian, Mixture, Network
from posterity.ledger import Ledger
from posterity.models import LogisticRegression, NeuralNetwork
from posterity.networks import Layers
from tests.distillation.examples import KEY, LAYERS, NET, network_teacher

X = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
POSTERIOR = Network.from_standard(np.ones(LAYERS.size), np.full(LAYERS.size, 0.01), LAYERS)


def outputs(teacher: Teacher) -> jax.Array:
    """Of the first draws."""
    return jax.jit(lambda key: teacher.outputs(teacher.draws(teacher.begin(key=key)), X))(KEY)


def test_posteriors_and_what_holds_one() -> None:
    site = Ledger.of_site("a", prior=Network.prior(LAYERS, 1.0), posterior=POSTERIOR)
    mixture = Mixture.from_standard(
        [0.3, 0.7], DiagonalGaussian.from_standard(np.zeros((2, LAYERS.size)),
                                                   np.ones((2, LAYERS.size)))
    )  # fmt: skip
    for given, model in ((POSTERIOR, None), (site, None), (mixture, NET)):
        teacher = as_teacher(given, model)
        assert isinstance(teacher, Independent)
        assert outputs(teacher).shape == (16, 6, 2)
        assert teacher.head(X).likelihood == "categorical"
    own = network_teacher()
    assert as_teacher(own, None) is own


def test_draws_of_a_law_are_its_draws() -> None:
    teacher = Independent(POSTERIOR, NET, samples=4000)
    draws = np.asarray(jax.jit(lambda key: teacher.advance(None, key=key))(KEY), np.float64)
    error = 0.1 / 4000**0.5
    assert (np.abs(draws.mean(0) - 1) < 5 * error).all()
    np.testing.assert_allclose(draws.std(0), 0.1, rtol=5 / 8000**0.5)


def test_every_stored_sample_is_heard() -> None:
    samples = np.arange(30.0)[:, None] * np.ones(LAYERS.size)
    teacher = Draws(NET, samples, samples=10)
    heard, drawn = set(), jax.jit(lambda key: teacher.draws(teacher.advance(None, key=key)))
    for number in range(20):
        places = np.asarray(drawn(jax.random.key(number)))[:, 0].tolist()
        assert len(set(places)) == 10
        heard.update(places)
    assert heard == set(range(30))
    few = Draws(NET, samples[:3])
    np.testing.assert_array_equal(few.draws(few.begin(key=KEY)), samples[:3])


def test_stored_samples_predict_together() -> None:
    samples = np.random.default_rng(1).normal(size=(25, LAYERS.size))
    found = Draws(NET, samples, samples=10).predict(X)
    logits = jax.jit(jax.vmap(lambda z: NET.outputs(z, X)))(samples.astype(np.float32))
    each = scipy.special.softmax(np.asarray(logits), -1)
    np.testing.assert_allclose(found.mean, np.mean(each, 0), rtol=1e-5)
    entropy = -np.mean([(p * np.log(p)).sum(1) for p in each], 0)
    np.testing.assert_allclose(found.entropy - found.mutual_information, entropy, rtol=1e-4)


def test_a_regression_teaches() -> None:
    law = Gaussian.from_standard(np.zeros(2), np.eye(2))
    teacher = as_teacher(law, LogisticRegression())
    assert teacher.head(X) == teacher.head(X)
    assert teacher.head(X).likelihood == "bernoulli"
    assert outputs(teacher).shape == (16, 6, 1)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: as_teacher("fused.safetensors", None), UsageError, "a teacher that is a str"),
        (lambda: as_teacher(3, None), UsageError, "a teacher that is a int"),
        (lambda: as_teacher(Gaussian.from_standard([0.0], [[1.0]]), None), UsageError, "model"),
        (lambda: as_teacher(Network.prior(Layers.dense(2, 1)), None), UsageError, "of_layers"),
        (
            lambda: Independent(DiagonalGaussian([0.0], [-1.0]), LogisticRegression()),
            UsageError,
            "improper",
        ),
        (lambda: Draws(NET, {}), StructureError, "first axis"),
        (lambda: Draws(NET, np.zeros((0, NET.size))), StructureError, "first axis"),
        (lambda: Draws(NET, np.float64(1.0)), StructureError, "first axis"),
        (lambda: Draws(NET, {"a": np.ones((3, 1)), "b": np.ones((2, 1))}), StructureError, "axis"),
        (lambda: Draws(NET, np.ones((3, 2)), samples=0), UsageError, "samples"),
    ],
)
def test_what_does_not_teach(make, error, says) -> None:
    with pytest.raises(error, match=says):
        make()


def test_layers_of_the_teacher_are_known() -> None:
    assert network_teacher().layers == LAYERS
    assert Draws(NET, np.ones((2, LAYERS.size))).layers == LAYERS
    own = NeuralNetwork(lambda p, x: x @ p["w"], {"w": np.ones((2, 2))})
    assert Langevin(own, own.prior(), (X, np.arange(6) % 2)).layers is None
