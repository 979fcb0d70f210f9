"""Networks as posteriors: they keep their layers, in files and ledgers; forgeries are refused."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import posterity
from posterity import artifact
from posterity.errors import ArtifactError, StructureError
from posterity.families import DiagonalGaussian, Network
from posterity.models.forward import outputs
from posterity.networks import Conv, Dense, Layers
from tests.artifact.forging import Forgery, node
from tests.laws.table import identical, laws

LAYERS = Layers(
    (Conv((2, 2), 1, 3, pool=2), Dense(12, 4, "tanh"), Dense(4, 2, "identity")), (5, 5, 1)
)


def network(seed: int, layers: Layers = LAYERS) -> Network:
    rng = np.random.default_rng(seed)
    return Network.from_standard(
        rng.normal(size=layers.size), np.exp(rng.normal(size=layers.size)), layers
    )


@pytest.mark.slow
@laws
@given(st.integers(0, 99), st.permutations(range(3)), st.permutations(range(4)))
def test_relabelled_units_compute_the_same(seed: int, first: list[int], second: list[int]) -> None:
    """Of a convolution, whose units come in at many places of a flattened image, as well."""
    q = network(seed)
    moved = q.relabel(np.array(first), 3, axes=(0,)).relabel(np.array(second), 4, axes=(1,))
    x = np.random.default_rng(seed).normal(size=(2, 5, 5, 1))
    expected = outputs(LAYERS, q.mean.astype(np.float32), x)
    np.testing.assert_allclose(
        outputs(LAYERS, moved.mean.astype(np.float32), x), expected, rtol=1e-3, atol=1e-4
    )
    back = moved.relabel(np.argsort(second), 4, axes=(1,)).relabel(np.argsort(first), 3, axes=(0,))
    assert identical(back, q)


def test_units_that_nobody_becomes_are_zero() -> None:
    factor = network(0, Layers.dense(2, 2, 1))
    wider = factor.relabel(np.array([2, 0]), 4, axes=(0,))
    assert wider.layers == Layers.dense(2, 4, 1)
    (first, last), own = (
        wider.layers.unravel(wider.precision),
        factor.layers.unravel(factor.precision),
    )
    assert not first["bias"][[1, 3]].any() and not first["kernel"][:, [1, 3]].any()
    assert not last["kernel"][[1, 3]].any()
    assert np.array_equal(first["kernel"][:, [2, 0]], own[0]["kernel"])
    assert np.array_equal(last["kernel"][[2, 0]], own[1]["kernel"])
    assert np.array_equal(last["bias"], own[1]["bias"])


def test_networks_of_other_layers_do_not_add() -> None:
    q, other = (
        network(0, Layers.dense(2, 3, 1)),
        network(0, Layers.dense(2, 3, 1, activation="tanh")),
    )
    plain = DiagonalGaussian(q.precision_mean, q.precision)
    for stranger in (other, plain):
        with pytest.raises((StructureError, TypeError)):
            q + stranger
        assert q != stranger
    assert q.outline(plates=False) == network(0, Layers.dense(2, 5, 1)).outline(plates=False)
    assert q.outline(plates=False) != other.outline(plates=False)
    with pytest.raises(StructureError, match="as many weights"):
        Network(np.zeros(3), np.ones(3), Layers.dense(2, 3, 1))


def test_it_stays_one_through_arithmetic_copies_and_files(tmp_path: Path) -> None:
    q, p = network(0), Network.prior(LAYERS, (0.1, 0.2, 0.3))
    assert np.unique(p.variance.round(12)).tolist() == [0.1, 0.2, 0.3]
    for same in ((q + p) - p, q * 1.0, copy.deepcopy(q), pickle.loads(pickle.dumps(q)), q[()]):
        assert type(same) is Network and same.layers == LAYERS
    ledger = posterity.Ledger.of_site("north", prior=p, posterior=q)
    posterity.save(ledger, tmp_path / "ledger")
    again = posterity.load(tmp_path / "ledger")
    assert again == ledger and again.posterior.layers == LAYERS
    assert repr(again.posterior) == "Network(5x5x1-2x2 conv 3 relu-4 tanh-2)"
    found = posterity.inspect(tmp_path / "ledger")
    assert found.kind == "Ledger"


# --- files made by hand --------------------------------------------------------------------------


def forged() -> Forgery:
    """A network of two inputs and one output, as a file has it."""
    mean, precision = np.arange(3.0), np.array([1.0, 2.0, 4.0])
    dense = node("Dense", inputs=2, outputs=1, activation="identity", bias=True)
    layers = node("Layers", layers=[dense], image=[2], sites=0)
    arrays = {"precision_mean": mean, "precision": precision}
    return Forgery("Network", arrays, **arrays, layers=layers)


def test_a_forgery_in_which_nothing_is_wrong_is_sound(tmp_path: Path) -> None:
    found = artifact.load(forged().write(tmp_path / "file"))
    layers = Layers((Dense(2, 1, "identity"),))
    expected = Network(np.arange(3.0), np.array([1.0, 2.0, 4.0]), layers)
    assert found == expected


def _first(forgery: Forgery) -> dict[str, Any]:
    return forgery.fields["layers"]["fields"]["layers"][0]


FORGED: dict[str, Any] = {
    "another size": lambda f: _first(f)["fields"].update(inputs=3),
    "a huge size": lambda f: _first(f)["fields"].update(outputs=10**30),
    "a negative size": lambda f: _first(f)["fields"].update(inputs=-2),
    "a size of text": lambda f: _first(f)["fields"].update(inputs="2"),
    "a fraction": lambda f: _first(f)["fields"].update(inputs=2.0),
    "an unknown activation": lambda f: _first(f)["fields"].update(activation="os.system"),
    "a list for an activation": lambda f: _first(f)["fields"].update(activation=["relu"]),
    "a bias of text": lambda f: _first(f)["fields"].update(bias="yes"),
    "a field too many": lambda f: _first(f)["fields"].update(more=1),
    "a field too few": lambda f: _first(f)["fields"].pop("bias"),
    "no layers": lambda f: f.fields["layers"]["fields"].update(layers=[]),
    "a network for a layer": lambda f: f.fields["layers"]["fields"].update(layers=[f.tree]),
    "an image of text": lambda f: f.fields["layers"]["fields"].update(image="2"),
    "an image that does not fit": lambda f: f.fields["layers"]["fields"].update(image=[5]),
    "numbers for layers": lambda f: f.fields.update(layers=[2, 1]),
    "no layers at all": lambda f: f.fields.pop("layers"),
    "a layer for layers": lambda f: f.fields.update(layers=_first(f)),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_layers_are_refused(tmp_path: Path, case: str) -> None:
    forgery = forged()
    if case == "a network for a layer":
        forgery.fields["layers"]["fields"]["layers"] = [node("Gamma", shape_minus_one=1, rate=1)]
    else:
        FORGED[case](forgery)
    with pytest.raises(ArtifactError, match="file"):
        artifact.load(forgery.write(tmp_path / "file"))
