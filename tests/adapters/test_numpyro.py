"""NumPyro models as targets, guides as posteriors: against NumPyro's densities and draws."""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import posterity
from posterity.adapters.numpyro import Prior, from_guide, joint
from posterity.errors import MissingExtraError, UsageError
from posterity.families import DiagonalGaussian, Gaussian
from posterity.families.supports import PositiveNumbers, RealNumbers, Simplex, UnitInterval

numpyro: Any = pytest.importorskip("numpyro", reason="numpyro is not installed: the extra numpyro")
dist: Any = pytest.importorskip("numpyro.distributions")

from numpyro.infer import autoguide  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The posterior has not converged:UserWarning")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 2)), RNG.normal(size=12)


def every(x: Any, y: Any = None) -> None:
    """A site of each support, with names that are not in alphabetical order."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    share = numpyro.sample("share", dist.Beta(2.0, 3.0))
    mix = numpyro.sample("mix", dist.Dirichlet(np.ones(3)))
    numpyro.deterministic("twice", 2 * share)
    with numpyro.plate("records", len(x)):
        mean = x @ w + share + mix @ np.arange(3.0)
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def coins(heads: int, flips: int) -> None:
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    numpyro.sample("heads", dist.Binomial(flips, p), obs=heads)


def by_hand(z: Any, data: bool) -> float:
    norm = scipy.stats.norm.logpdf
    found = norm(z["w"]).sum() + scipy.stats.halfnorm.logpdf(z["scale"], scale=2.0)
    found += scipy.stats.beta.logpdf(z["share"], 2, 3) + np.log(2.0)  # the simplex has area 1/2
    mean = X @ z["w"] + z["share"] + z["mix"] @ np.arange(3.0)
    return float(found + data * norm(Y, mean, z["scale"]).sum())


EVENT = {
    "w": np.array([0.3, -1.2]), "scale": np.array(0.7), "share": np.array(0.2),
    "mix": np.array([0.5, 0.2, 0.3]),
}  # fmt: skip


def test_a_joint_is_the_models_density() -> None:
    target = joint(every, X, y=Y)
    with jax.enable_x64(True):
        found = float(jax.jit(lambda z: target.log_density(z))(EVENT))
        prior = jax.jit(lambda z: target.prior.log_prob(z))
        before, two = prior(EVENT), prior({k: np.stack([v, v]) for k, v in EVENT.items()})
    assert np.isclose(found, by_hand(EVENT, data=True), rtol=1e-12)
    assert np.isclose(before, by_hand(EVENT, data=False), rtol=1e-12)
    assert np.allclose(two, before) and two.shape == (2,)


@pytest.mark.slow
def test_the_prior_of_a_model() -> None:
    prior = joint(every, X, y=Y).prior
    assert prior.support == {
        "w": RealNumbers((2,)), "scale": PositiveNumbers(), "share": UnitInterval(),
        "mix": Simplex((3,)),
    }  # fmt: skip
    n = 4000
    with jax.enable_x64(True):
        drawn = jax.tree.map(np.asarray, prior.sample(jax.random.key(1), (n // 4, 4)))
        one = prior.sample(jax.random.key(1))
    assert {name: np.shape(part) for name, part in one.items()} == prior.event_shape
    assert drawn["mix"].shape == (n // 4, 4, 3)
    shares = drawn["share"].ravel()
    known = scipy.stats.beta(2, 3)
    assert abs(shares.mean() - known.mean()) < 5 * known.std() / n**0.5
    assert scipy.stats.kstest(drawn["scale"].ravel(), scipy.stats.halfnorm(scale=2).cdf).pvalue > (
        1e-4
    )
    assert Prior.from_standard(every, X, y=Y) == prior and bool(prior.is_proper())


def test_draws_on_the_border_are_moved_inside() -> None:
    """Beta(.005, .005) rounds to zero and one most of the time."""

    def model() -> None:
        numpyro.sample("p", dist.Beta(0.005, 0.005))
        numpyro.sample("pi", dist.Dirichlet(jnp.full(3, 0.005)))

    prior = joint(model).prior
    with jax.enable_x64(True):
        drawn = jax.jit(lambda key: prior.sample(key, (200,)))(jax.random.key(0))
    drawn = jax.tree.map(np.asarray, drawn)
    for name, support in prior.support.items():
        assert support.holds(posterity.arrays.namespace.namespace(drawn[name]), drawn[name]).all()


QUICK: Any = {"key": jax.random.key(0), "components": 2, "samples": 512}
EVIDENCE = (
    scipy.special.betaln(11, 3) - scipy.special.betaln(2, 2) + np.log(scipy.special.comb(10, 9))
)


@pytest.mark.slow
def test_pursuing_a_model_finds_its_posterior() -> None:
    """Of a beta prior and a coin the evidence and the posterior are known."""
    found = posterity.pursue(joint(coins, 9, 10), "diagonal", **QUICK)
    assert EVIDENCE - 0.02 < found.elbo < EVIDENCE + 5 * found.standard_error
    with jax.enable_x64(True):
        drawn = np.asarray(found.posterior.sample(jax.random.key(1), (20_000,))["p"])
    known = scipy.stats.beta(11, 3)
    assert abs(drawn.mean() - known.mean()) < 0.005
    assert abs(drawn.std() - known.std()) < 0.01


def test_a_model_is_a_pytree_of_its_arrays() -> None:
    """Data are arguments of what is compiled, and other arguments are not."""
    target = joint(every, X.astype(np.float32), y=jnp.asarray(Y))
    assert [leaf.dtype for leaf in jax.tree.leaves(target)] == [np.float64, np.float64]
    again = joint(every, X, y=Y)
    assert jax.tree.structure(target) == jax.tree.structure(again)
    assert jax.tree.leaves(joint(coins, 9, 10)) == []


GUIDES = {
    "AutoNormal": DiagonalGaussian,
    "AutoDiagonalNormal": DiagonalGaussian,
    "AutoMultivariateNormal": Gaussian,
    "AutoLowRankMultivariateNormal": Gaussian,
}


@functools.cache
def begun(kind: str) -> tuple[Any, Any]:
    """A guide, and parameters that are nowhere near what it begins with."""
    guide = getattr(autoguide, kind)(every)
    svi = numpyro.infer.SVI(every, guide, numpyro.optim.Adam(0.1), numpyro.infer.Trace_ELBO())
    params = jax.jit(lambda key: svi.get_params(svi.init(key, X, y=Y)))(jax.random.key(0))
    rng, moved = np.random.default_rng(1), {}
    for name, leaf in params.items():
        noise = rng.normal(size=np.shape(leaf)).astype(leaf.dtype)
        positive = name.endswith(("scale", "cov_diag"))
        moved[name] = np.exp(noise) / 2 if positive else np.asarray(leaf) + noise
        if name.endswith("scale_tril"):
            moved[name] = np.tril(noise, -1) + np.diag(np.exp(np.diag(noise)))
    return guide, jax.device_put(moved)


def fitted(kind: str) -> tuple[Any, Any]:
    guide, params = begun(kind)
    return guide, dict(params)


SOME = ("AutoNormal", "AutoMultivariateNormal")


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(GUIDES))
def test_a_guide_is_the_law_that_it_draws_from(kind: str, tmp_path: Any) -> None:
    guide, params = fitted(kind)
    q = from_guide(guide, params)
    assert type(q.law) is GUIDES[kind]
    assert q.event_shape == {"mix": (3,), "scale": (), "share": (), "w": (2,)}
    assert sorted(q.names) == ["mix[0]", "mix[1]", "scale", "share", "w[0]", "w[1]"]
    drawn = guide.sample_posterior(jax.random.key(2), params, sample_shape=(4000,))
    event = {name: np.asarray(drawn[name], float) for name in q.event_shape}
    event["mix"] /= event["mix"].sum(-1, keepdims=True)  # to the last digit, after float32
    u = q.supports.inverse(event)
    flat = q.supports.ravel(u)
    law: Any = q.law
    covariance = np.diag(law.variance) if kind in list(GUIDES)[:2] else law.covariance
    mean, deviation = np.asarray(law.mean), np.sqrt(np.diag(covariance))
    # Logits of float32 draws near one are coarse; medians feel that less than means.
    assert (abs(np.median(flat, 0) - mean) < 5 * 1.2533 * deviation / 4000**0.5).all()
    scaled = (flat - mean) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    for column in scaled.T:
        assert scipy.stats.kstest(column, scipy.stats.norm.cdf).pvalue > 1e-5
    posterity.save(q, tmp_path / "guide.safetensors")
    assert posterity.load(tmp_path / "guide.safetensors") == q


@pytest.fixture
def unchecked() -> Any:
    """NumPyro looks at arguments of its laws one operation after another."""
    with numpyro.validation_enabled(False):
        yield


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", SOME)
def test_a_guides_density(kind: str) -> None:
    """The ELBO's own: of the guide's trace, at one draw of it."""
    guide, params = fitted(kind)
    q = from_guide(guide, params)

    @jax.jit
    def traced(params: Any, key: Any) -> Any:
        seeded = numpyro.handlers.seed(numpyro.handlers.substitute(guide, params), key)
        sites = numpyro.handlers.trace(seeded).get_trace(X, y=Y)
        drawn = {name: site for name, site in sites.items() if site["type"] == "sample"}
        logs = [site["fn"].log_prob(site["value"]).sum() for site in drawn.values()]
        return sum(logs), {name: site["value"] for name, site in sites.items()}

    theirs, values = traced(params, jax.random.key(3))
    event = {name: np.asarray(values[name], float) for name in q.event_shape}
    event["mix"] /= event["mix"].sum()
    u = q.supports.inverse(event)
    latent = values.get("_auto_latent")
    assert latent is None or np.allclose(q.supports.ravel(u), latent, atol=1e-3)
    assert np.isclose(float(q.log_prob(event)), float(theirs), atol=2e-2), "float32 of the guide"


@pytest.mark.slow
def test_a_guide_is_a_base() -> None:
    """As good a place to begin as any: what is found is the same, but for noise."""
    guide = autoguide.AutoDiagonalNormal(coins)
    numpyro.handlers.seed(guide, jax.random.key(0))(9, 10)
    base = from_guide(guide, {"auto_loc": jnp.array([0.5]), "auto_scale": jnp.array([1.0])})
    found = posterity.pursue(joint(coins, 9, 10), base, **QUICK)
    assert EVIDENCE - 0.02 < found.elbo < EVIDENCE + 5 * found.standard_error
    assert found.posterior.components.supports == base.supports


def discrete() -> None:
    numpyro.sample("coin", dist.Bernoulli(0.5))


def interval() -> None:
    numpyro.sample("angle", dist.Uniform(-1.0, 3.0))


def improper() -> None:
    numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), ()))


def learned() -> None:
    numpyro.sample("z", dist.Normal(numpyro.param("m", 0.0), 1.0))


def minibatch(y: Any) -> None:
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", len(y), subsample_size=3) as some:
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y[some])


def nothing() -> None:
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=1.0)


@pytest.mark.parametrize(
    "model, data, words",
    [
        (discrete, (), "site 'coin'.*Sum it out"),
        (interval, (), "site 'angle' on Interval.*Beta"),
        (improper, (), "from the model"),
        (learned, (), "the parameter 'm'"),
        (minibatch, (Y,), "part of the plate 'records'.*posterity.pursuit.Joint"),
        (nothing, (), "without latent sites"),
        (every, (), "TypeError.*from the model"),
        (every, (X, {1, 2}), "cannot be hashed"),
    ],
)
def test_models_that_are_refused(model: Any, data: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        joint(model, *data)


def test_guides_that_are_refused_and_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="has not been run"):
        from_guide(autoguide.AutoNormal(every), {})
    guide, params = fitted("AutoNormal")
    params.pop("w_auto_loc")
    with pytest.raises(UsageError, match="no parameter 'w_auto_loc'"):
        from_guide(guide, params)
    with pytest.raises(UsageError, match=r"of type AutoBNAFNormal.*from_samples"):
        from_guide(autoguide.AutoBNAFNormal(every), {})
    with pytest.raises(UsageError, match="of type int"):
        from_guide(3, {})
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(MissingExtraError, match=r"posterity\[numpyro\]"):
        joint(coins, 9, 10)
