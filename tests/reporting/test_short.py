"""What ``repr`` says: one short line, whatever a law holds."""

import time

import jax
import numpy as np
import pytest
from laws.table import TABLE

from posterity import Ledger, federate, fuse
from posterity.families import DiagonalGaussian, Dirichlet, Gamma, Gaussian, Mixture, Plate, Product
from posterity.models.conjugate import GaussianMean
from posterity.pursuit import Pursuit, Row
from posterity.receipt import Receipt
from posterity.status import Status


@pytest.mark.parametrize("name", TABLE)
def test_every_family_in_every_state(name):
    for batch in [()] if name == "Mixture" else [(), (2,), (0,)]:
        check_every_state(name, TABLE[name].draw(np.random.default_rng(0), batch, 3))


def check_every_state(name, q):
    states = [q, jax.tree.map(lambda leaf: None, q), jax.tree.map(lambda leaf: leaf * np.nan, q)]
    states += [jax.eval_shape(lambda: q), jax.tree.map(lambda leaf: -leaf, q)]
    states.append(jax.tree.map(lambda leaf: "text", q))
    states.append(object.__new__(type(q)))
    jax.jit(lambda q: states.append(repr(q)))(q) if name in ("Gaussian", "Plate") else None
    for state in states:
        said = state if isinstance(state, str) else repr(state)
        assert type(q).__name__ in said
        assert len(said) <= 200 and "\n" not in said


def test_what_it_says():
    q = Gaussian.from_standard(np.arange(5.0), np.eye(5) / 4).named(list("abcde"))
    assert repr(q) == "Gaussian(d=5, a=0 ± 0.5, b=1 ± 0.5, c=2 ± 0.5, 2 more)"
    assert repr(Gamma.from_standard(4.0, 2.0)) == "Gamma(2 ± 1)"
    assert repr(q - q) == "Gaussian(d=5, improper)"
    members = DiagonalGaussian.from_standard(np.zeros((2, 3)), np.ones((2, 3)))
    plate = Plate(members, Dirichlet.from_standard([1.0, 3.0])).named(["low", "high"])
    assert repr(plate) == "Plate(2 x DiagonalGaussian(d=3) low, high, Dirichlet weights 0.25 0.75)"
    two = Mixture.from_standard([1.0, 3.0], members)
    assert repr(two) == "Mixture(2 x DiagonalGaussian(d=3), weights 0.25 0.75)"
    assert repr(members) == "DiagonalGaussian(d=3, batch=(2,))"
    assert repr(Product(noise=Gamma.from_standard(4.0, 2.0))) == "Product(noise=Gamma(2 ± 1))"


def test_long_names_control_characters_and_many_blocks_stay_on_a_line():
    q = Gaussian.from_standard([1.0], [[1.0]]).named(["x" * 200])
    assert len(repr(q)) < 80
    q = q.named(["\x1b[31m\n<script>"])
    assert "\n" not in repr(q) and "\x1b" not in repr(q)
    many = Product({f"block{n}": Gamma.from_standard(1.0, 1.0) for n in range(100)})
    assert len(repr(many)) == 200


def test_it_is_quick_whatever_the_size():
    rng = np.random.default_rng(0)
    large = Gaussian(np.zeros(3000), np.eye(3000))
    wide = DiagonalGaussian(rng.normal(size=10**6), np.ones(10**6))
    begun = time.process_time()
    assert repr(large) == "Gaussian(d=3000)"
    assert repr(wide).endswith("999997 more)")
    assert time.process_time() - begun < 1.0


def test_ledgers_fusions_and_receipts():
    prior = Gamma.from_standard(1.0, 1.0)
    ledger = Ledger(prior).extend({f"site{n}": Gamma(1.0, 1.0) for n in range(5)}).forget("site0")
    assert repr(ledger) == (
        "Ledger(4 sites: site1, site2, site3 and 1 more, 1 forgotten; Gamma(1 ± 0.45))"
    )
    plate = Plate(DiagonalGaussian.from_standard([[0.0], [9.0]], [[0.1], [0.1]]))
    fusion = fuse({"a": plate, "b": plate, "c": plate})
    assert repr(fusion).startswith("Fusion(Plate(2 x DiagonalGaussian(d=1)); barycenter since the ")
    assert "; 2 components of 3 sites" in repr(fusion)
    receipt = Receipt(("a\n",), True, "x", "y", "now", "1")
    assert "\n" not in repr(receipt)


def test_runs_without_their_history_and_pursuits():
    prior = Gaussian.from_standard(np.zeros(2), np.eye(2)).named(["age", "bp"])
    sites = {name: np.full((30, 2), k, float) for k, name in enumerate("abc")}
    run = federate(sites, GaussianMean(np.eye(2)), prior)
    assert repr(run).startswith("Run(step 1 of Sequential, 3 sites: a, b, c; Gaussian(d=2, age=0.9")
    assert "history" not in repr(run)
    mixture = Mixture.from_standard([1.0], DiagonalGaussian.from_standard([[0.0]], [[1.0]]))
    row = Row(1, -2.0, 0.1, -2.0, 0.1, 1.0, 1.0, 1.4, 1.0, 100)
    found = Pursuit(mixture, Status("converged", 0.0, 0.01), (row,))
    assert "ELBO" in repr(found)
