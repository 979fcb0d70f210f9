"""Components over a vocabulary, of many numbers each."""

import numpy as np

import posterity
from posterity import Dirichlet, Ledger, Plate


def test_planted_topics_are_found_and_added_up() -> None:
    rng, words, held = np.random.default_rng(0), 15_000, 6
    truth = rng.dirichlet(np.full(words, 0.02), 8)
    total, ledgers = np.zeros(truth.shape), []
    for name in "abcdef":
        own = rng.permutation(8)[:held]
        counts = rng.poisson(truth[own] * 20_000) * 1.0
        total[own] += counts
        prior = Plate(Dirichlet.from_standard(np.full(counts.shape, 0.05)))
        ledgers.append(
            Ledger.of_site(name, prior=prior, posterior=prior + Plate(Dirichlet(counts)))
        )
    fused = posterity.fuse(ledgers, rule="product")
    assert fused.components == 8
    found = fused.posterior.members.concentration - 0.05  # pyright: ignore
    order = [int(np.abs(total - row).sum(1).argmin()) for row in found]
    assert sorted(order) == list(range(8))
    np.testing.assert_allclose(found, total[order], rtol=1e-9, atol=1e-9)
    assert min(fused.components_evidence.values()) == 0.0
    again = posterity.fuse(ledgers[::-1], rule="product")
    assert again.posterior == fused.posterior
    fewer = posterity.fuse(ledgers, rule="product", components=7)
    assert fewer.components == 7
