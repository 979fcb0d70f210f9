"""Networks in federations: refined from a posterior that sites share, and forgotten."""

import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from federation.examples import load_checkpoint, save_checkpoint

import posterity
from posterity import LocalUpdate
from posterity.errors import ConvergenceWarning, ParameterError, SiteError, UsageError
from posterity.families import DiagonalGaussian, Network
from posterity.federation import Asynchronous, Run, Sequential
from posterity.federation.federate import start
from posterity.inference import Refinement
from posterity.inference.update import TrainedApart
from posterity.ledger import Ledger
from posterity.models import NeuralNetwork
from posterity.networks import GaussianPrior, Layers, predict
from tests.networks.digits import LAYERS, SITES, TEST, trained

MODEL = NeuralNetwork.of_layers(LAYERS)
UPDATE = Refinement(steps=100)


@pytest.fixture(scope="module")
def shared() -> Ledger:
    """What one site knows, of the digits below seven: a place to start from."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = trained(SITES["low"], steps=600, temperature=0.1, prior=GaussianPrior(0.1))
    return found.ledger("low")


def accuracy(network: Any) -> float:
    return float((predict(network, TEST[0], samples=0).argmax(1) == TEST[1]).mean())


def begun(shared: Any, **options: Any) -> Run:
    return start(SITES, MODEL, shared, **{"update": UPDATE, **options})


def test_a_round_is_the_average_by_records_of_what_sites_found(shared: Ledger) -> None:
    run = begun(shared.posterior)
    after = run.advance(1)
    q, sizes = shared.posterior, {site: len(y) for site, (_, y) in SITES.items()}
    shares = {site: size / sum(sizes.values()) for site, size in sizes.items()}
    own = {site: q + after.ledger.factor(site) / shares[site] for site in SITES}
    assert all(network.is_proper() for network in own.values())
    # Each site is better than before at what it knows, and has not forgotten all else.
    for site, network in own.items():
        x, y = SITES[site]
        better = (predict(network, x, samples=0).argmax(1) == y).mean()
        assert better > (predict(q, x, samples=0).argmax(1) == y).mean()
    mean = sum(own[site].natural_parameters * shares[site] for site in SITES)
    np.testing.assert_allclose(after.posterior.natural_parameters, mean, rtol=1e-9)
    assert type(after.posterior) is Network and after.posterior.layers == LAYERS


@pytest.mark.slow
def test_rounds_bring_in_what_the_first_site_never_saw(shared: Ledger) -> None:
    with pytest.warns(ConvergenceWarning, match="after 3 rounds"):
        run = posterity.federate(SITES, MODEL, shared, update=Refinement(), steps=3)
    before, after = accuracy(shared.posterior), accuracy(run.posterior)
    assert before < 0.75 and after > before + 0.05
    assert run.ledger.prior == shared.prior and run.sites == ("high", "low")
    assert run.status.left > run.status.tolerance
    assert "250 steps of Adam" in run.rule
    gone = posterity.forget(run, "high", sweeps=1, allow_unconverged=True)
    # What it alone knew is gone: its three of ten digits.
    assert accuracy(gone.ledger.posterior) < 0.75
    assert not gone.exact and gone.ledger.sites == ("low",)


def test_from_a_ledger_the_others_factors_stay(shared: Ledger) -> None:
    alone = {"high": SITES["high"]}
    run = start(alone, MODEL, shared, update=UPDATE)
    assert run.posterior == shared.posterior
    after = run.advance(1)
    assert after.ledger.factor("low") == shared.factor("low")
    assert after.ledger.sites == ("high", "low") and after.sites == ("high",)


def test_it_goes_on_from_a_checkpoint(shared: Ledger, tmp_path: Path) -> None:
    once = begun(shared).advance(1)
    save_checkpoint(once, tmp_path / "run")
    again = load_checkpoint(begun(shared), tmp_path / "run")
    assert again.posterior == once.posterior
    assert again.advance(1).posterior == once.advance(1).posterior
    with pytest.raises(posterity.PosterityError, match="another computation"):
        load_checkpoint(begun(shared.posterior), tmp_path / "run")


def test_other_schedules_take_the_same_shares(shared: Ledger) -> None:
    for schedule in (Sequential(), Asynchronous()):
        run = begun(shared, schedule=schedule).advance(2)
        assert run.posterior.is_proper() and run.posterior != shared.posterior


def test_a_sites_weight_is_its_likelihoods(shared: Ledger) -> None:
    muted = begun(shared, weights={"high": 0.0}).advance(1)
    assert muted.ledger.sites == ("low",)
    assert begun(shared, weights={"high": 2.0}).federation.sites["high"].share > 0.45


def test_a_network_learns_by_variational_online_newton_too() -> None:
    layers = Layers.dense(64, 3, 10)
    model = NeuralNetwork.of_layers(layers)
    prior = model.prior(variance=0.1, key=jax.random.key(0))
    few = {site: (x[:60], y[:60]) for site, (x, y) in SITES.items()}
    with pytest.warns(ConvergenceWarning):
        run = posterity.federate(few, model, prior, update=LocalUpdate(steps=3), steps=1)
    assert type(run.posterior) is Network and run.posterior != prior
    gone = posterity.forget(run, "low", sweeps=0, allow_unconverged=True)
    assert gone.ledger.posterior.layers == layers


def test_what_cannot_be_refined(shared: Ledger) -> None:
    plain = DiagonalGaussian.from_standard(np.zeros(LAYERS.size), np.ones(LAYERS.size))
    other = NeuralNetwork.of_layers(Layers.dense(64, 31, 10))
    for model, prior in [
        (MODEL, plain),
        (other, shared.posterior),
    ]:
        with pytest.raises(UsageError, match="NeuralNetwork of one noise, of the layers"):
            start(SITES, model, prior, update=UPDATE)
    with pytest.raises(ParameterError, match="labels from 0 to 9"):
        start({"low": (SITES["low"][0], SITES["low"][1] + 5)}, MODEL, shared, update=UPDATE)
    with pytest.raises(UsageError, match="steps"):
        Refinement(steps=0)
    with pytest.raises(UsageError, match="personal"):
        start(SITES, MODEL, shared, personal=True)
    wild = Refinement(steps=50, learning_rate=1e6)
    with pytest.raises(SiteError, match="evidence lower bound"):
        begun(shared, update=wild).advance(1)


def test_an_update_that_trains_says_how() -> None:
    class Silent(TrainedApart):
        pass

    class Stays(TrainedApart):
        def trained(self, model: Any, view: Any, records: Any, *, key: Any) -> Any:
            return view

    with pytest.raises(TypeError, match="trained"):
        Silent()
    assert not hasattr(LocalUpdate(), "trained")
    update = Stays(steps=1)
    assert update.trains and not update.searches and not update.conjugate
