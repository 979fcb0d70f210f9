"""Networks that were trained on parts of the digits, fused."""

import warnings

import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits

import posterity
import posterity.fusion.networks.fuse
from posterity.errors import ConvergenceWarning
from posterity.fusion.networks.targets import flow
from posterity.networks import GaussianPrior, Layers, train


def accuracy(network, x, y):
    outputs = flow(network.layers, network.layers.unravel(network.mean), x)[-1]
    return float((outputs.argmax(1) == y).mean())


@pytest.mark.slow
def test_sites_that_know_some_digits_become_a_network_that_knows_all():
    x, y = load_digits(return_X_y=True)
    x = x / 16
    test = np.arange(len(y)) % 3 == 0
    layers, sites = Layers.dense(64, 20, 10), {}
    for j, digits in enumerate(([0, 1, 2, 3, 4, 5], [4, 5, 6, 7, 8, 9], [0, 2, 4, 6, 8, 9])):
        own = ~test & np.isin(y, digits)
        prior = GaussianPrior(variance=0.1)
        key = jax.random.key(j)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # which takes longer, for no gain
            trained = train(
                layers, (x[own], y[own]), key=key, prior=prior, temperature=0.1, steps=600
            )
        sites[f"s{j}"] = trained.ledger(f"s{j}")
    fused = posterity.fuse(sites)
    assert 20 <= fused.widths[0] <= 50
    assert fused.achieved_kl <= 0.01
    locals_ = [accuracy(ledger.posterior, x[test], y[test]) for ledger in sites.values()]
    found = accuracy(fused.posterior, x[test], y[test])
    error = np.sqrt(0.1 * 0.9 / test.sum())  # a standard error of an accuracy of 90 %
    assert max(locals_) < 0.7
    assert found > 0.9 - 2 * error
    for k, share in enumerate(np.stack(list(fused.shares.values())).T):
        seen = [k in digits for digits in (range(6), range(4, 10), (0, 2, 4, 6, 8, 9))]
        assert share[seen].min() > share[~np.array(seen)].max(initial=0.0)
    left = fused.ledger.forget("s2").posterior  # whose digits the others know between them
    rest = posterity.fuse({name: sites[name] for name in ("s0", "s1")}).posterior
    known = accuracy(left, x[test], y[test]), accuracy(rest, x[test], y[test])
    assert known[0] > known[1] - 0.05 - 2 * error, known
