"""Draws as the libraries give them: pandas, ArviZ, CmdStan's CSV, NumPyro and BlackJAX."""

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity.adapters import from_samples
from posterity.errors import FitWarning, StructureError, UsageError
from posterity.families import Transformed
from posterity.families.supports import PositiveNumbers, RealNumbers

pd: Any = pytest.importorskip("pandas")
xr: Any = pytest.importorskip("xarray")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what ArviZ says of its own future when it is imported
    arviz: Any = pytest.importorskip("arviz", reason="arviz is not installed: the extra arviz")
numpyro: Any = pytest.importorskip("numpyro", reason="numpyro is not installed: the extra numpyro")
blackjax: Any = pytest.importorskip("blackjax")

import numpyro.distributions as dist  # noqa: E402

BETA = np.random.default_rng(0).normal([1.0, -2.0], 1.0, (2, 200, 2))
SIGMA = np.exp(np.random.default_rng(1).normal(size=(2, 200)) / 10)
MOMENTS = np.concatenate([BETA, SIGMA[..., None]], -1).reshape(-1, 3)
NAMES = ("beta[age]", "beta[bp]", "sigma")


def same(fit: Any, names: tuple[str, ...] = NAMES) -> None:
    """The law of these draws, in this order."""
    q = fit.posterior
    assert q.names == names and fit.ok
    assert np.allclose(q.mean, MOMENTS.mean(0)) and np.allclose(
        q.covariance, np.cov(MOMENTS.T, bias=True)
    )


# --- arrays --------------------------------------------------------------------------------------


def test_where_chains_lie() -> None:
    """All say the same; R-hat knows of the chains."""
    stuck = np.stack([BETA[0], BETA[1] + [5.0, 0.0]])
    with pytest.warns(FitWarning, match="Chains disagree"):
        whole = from_samples(stuck)
    for draws, chains in [
        (stuck.reshape(-1, 2), 2),
        (stuck, "first"),
        (stuck.swapaxes(0, 1), "second"),
        ({"z": stuck}, "first"),
        ({"z": stuck.reshape(-1, 2)}, 2),
    ]:
        with pytest.warns(FitWarning, match="Chains disagree"):
            found = from_samples(draws, chains=chains)
        assert np.isclose(found.checks.rhat, whole.checks.rhat)


def test_arrays_by_variable() -> None:
    flat = {"beta": BETA.reshape(-1, 2), "sigma": SIGMA.ravel()}
    names = ("beta[0]", "beta[1]", "sigma")
    same(from_samples(flat, chains=2), names)
    same(from_samples({"beta": BETA, "sigma": SIGMA}, chains="first", names=NAMES))
    assert from_samples(SIGMA.ravel()).posterior.event_shape == (1,)
    assert from_samples(MOMENTS.tolist()).posterior.event_shape == (3,)


# --- pandas --------------------------------------------------------------------------------------


def table() -> Any:
    columns = dict(zip(NAMES, MOMENTS.T, strict=True))
    return pd.DataFrame(
        {"chain": np.repeat([1, 2], 200), "draw": np.tile(np.arange(200), 2), **columns,
         "lp__": np.random.default_rng(0).normal(size=400), "divergent__": 0}
    )  # fmt: skip


def test_a_data_frame() -> None:
    whole = table()
    fit = from_samples(whole)
    same(fit)
    rhat = fit.checks.rhat
    shuffled = whole.sample(frac=1, random_state=0)
    assert np.isclose(from_samples(shuffled).checks.rhat, rhat)
    same(from_samples(whole.set_index(["chain", "draw"])))
    own: Any = from_samples(whole, support={"sigma": "positive"}).posterior
    assert own.supports.tree == {
        "beta[age]": RealNumbers(), "beta[bp]": RealNumbers(), "sigma": PositiveNumbers()
    }  # fmt: skip
    assert from_samples(whole["sigma"]).posterior.names == ("sigma",)


def test_tables_that_are_refused() -> None:
    whole = table()
    with pytest.raises(StructureError, match="column 'site' of type"):
        from_samples(whole.assign(site="north"))
    with pytest.raises(StructureError, match="column 'flag' of type bool"):
        from_samples(whole.assign(flag=True))
    with pytest.raises(StructureError, match=r"chains of \[200, 199\]|chains of \[199, 200\]"):
        from_samples(whole.iloc[:-1])
    with pytest.raises(StructureError, match="0 rows"):
        from_samples(whole.iloc[:0])
    with pytest.raises(StructureError, match="a name for each column"):
        from_samples(pd.DataFrame(MOMENTS))
    with pytest.raises(StructureError, match="a name for each column"):
        from_samples(pd.DataFrame(MOMENTS, columns=["a", "a", "b"]))


# --- ArviZ, PyMC and CmdStan ---------------------------------------------------------------------


FIRST = arviz.__version__.startswith("0.")  # whose data are an InferenceData, no DataTree


def of_groups(groups: dict[str, Any], **coordinates: Any) -> Any:
    """Draws by group as ArviZ has them, before and since its release 1."""
    return (
        arviz.from_dict(**groups, **coordinates)
        if FIRST
        else arviz.from_dict(groups, **coordinates)
    )


def inference_data() -> Any:
    """As PyMC writes it: coordinates of the model, and groups beside the posterior."""
    groups = {
        "posterior": {"beta": BETA, "sigma": SIGMA},
        "sample_stats": {"diverging": np.zeros((2, 200), bool)},
    }
    return of_groups(groups, coords={"column": ["age", "bp"]}, dims={"beta": ["column"]})


def test_inference_data_and_trees() -> None:
    data = inference_data()
    same(from_samples(data))
    same(from_samples(data.posterior))
    posterior = data.posterior if FIRST else data.posterior.to_dataset()
    groups = {"posterior": posterior, "sample_stats": data.sample_stats}
    same(from_samples(xr.DataTree.from_dict(groups)))
    same(from_samples(posterior.transpose("draw", "column", "chain")))
    with pytest.raises(UsageError, match=r"chains=2 beside (InferenceData|DataTree)"):
        from_samples(data, chains=2)
    with pytest.raises(StructureError, match="without a group 'posterior'"):
        from_samples(of_groups({"prior": {"x": BETA}}))
    with pytest.raises(StructureError, match="'x' with the axes"):
        from_samples(xr.Dataset({"x": ("draw", SIGMA[0])}))


def test_inference_data_in_a_file(tmp_path: Path) -> None:
    """Where the library that reads netCDF is there."""
    for module in ("h5netcdf", "h5py"):
        pytest.importorskip(module, reason=f"{module} is not installed: arviz may bring it")
    inference_data().to_netcdf(str(tmp_path / "run.nc"))
    same(from_samples(arviz.from_netcdf(str(tmp_path / "run.nc"))))


def test_what_gives_a_table_of_its_draws() -> None:
    """As CmdStanPy's fits do, with its columns; CmdStan itself is not there."""

    class CmdStanMCMC:
        def draws_pd(self) -> Any:
            renamed = {"chain": "chain__", "draw": "iter__"}
            return table().rename(columns=renamed).assign(draw__=np.arange(400))

    same(from_samples(CmdStanMCMC()))


# --- NumPyro and BlackJAX ------------------------------------------------------------------------


def model(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    start = numpyro.sample("start", dist.Uniform(-10.0, 10.0))
    numpyro.deterministic("twice", 2 * sigma)
    numpyro.sample("y", dist.Normal(mu, sigma), obs=y)
    numpyro.sample("seen", dist.Normal(start, 1.0), obs=0.5)


@pytest.mark.slow
def test_a_run_of_numpyro() -> None:
    """The supports are those of the model; what is deterministic stays behind."""
    y = np.random.default_rng(3).normal([1.0, -1.0], 1.0, (100, 2)).astype("float32")
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model), num_warmup=200, num_samples=300, num_chains=2,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    with pytest.raises(UsageError, match="has not been run"):
        from_samples(mcmc)
    mcmc.run(jax.random.key(0), jnp.asarray(y))
    fit = from_samples(mcmc)
    q: Any = fit.posterior
    assert isinstance(q, Transformed) and q.names == ("mu[0]", "mu[1]", "sigma", "start")
    assert q.supports.tree["sigma"] == PositiveNumbers()
    assert any("Interval" in note for note in fit.checks.notes)
    drawn = {n: np.asarray(v, float) for n, v in mcmc.get_samples().items()}
    assert np.isclose(q.law.mean[2], np.log(drawn["sigma"]).mean())
    # Flat enough a prior: the mean is that of the data, and its deviation sigma over ten.
    spread = drawn["sigma"].mean() / 10
    assert (abs(q.law.mean[:2] - y.mean(0)) < 5 * spread / 200**0.5).all()
    from posterity.adapters.numpyro import joint

    with pytest.raises(UsageError, match="site 'start'"):
        joint(model, y)
    with pytest.raises(UsageError, match="chains=2 beside MCMC"):
        from_samples(mcmc, chains=2)


def test_states_of_blackjax() -> None:
    def density(position: Any) -> Any:
        return -jnp.sum(position["w"] ** 2) / 2 - (position["m"] - 1) ** 2 / 8

    kernel = blackjax.hmc(density, 0.5, jnp.ones(3), 8)
    start = {"w": np.zeros((2, 2), np.float32), "m": np.ones(2, np.float32)}

    def step(states: Any, key: Any) -> Any:
        states, _ = jax.vmap(kernel.step)(jax.random.split(key, 2), states)
        return states, states

    def run(key: Any) -> Any:
        return jax.lax.scan(step, jax.vmap(kernel.init)(start), jax.random.split(key, 600))[1]

    states = jax.jit(run)(jax.random.key(0))
    fit = from_samples(states.position, chains="second")
    q: Any = fit.posterior
    assert q.names == ("m", "w[0]", "w[1]") and fit.ok
    errors = np.array([2.0, 1.0, 1.0]) / fit.checks.effective**0.5
    assert (abs(q.mean - [1, 0, 0]) < 5 * errors).all()
    with pytest.raises(UsageError, match="draws as HMCState"):
        from_samples(states, chains="second")
