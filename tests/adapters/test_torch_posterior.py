"""Laws of torch's weights, where torch is installed (make test-adapters), against definitions."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import posterity
from posterity import Gaussian, Product
from posterity.adapters.flax import from_params
from posterity.adapters.torch_posterior import from_module, to_ledger, to_state_dict
from posterity.errors import ConvergenceWarning, ParameterError, StructureError, UsageError
from posterity.networks import Conv, Dense, Layers, from_pytree, to_pytree
from tests.test_docs import ROOT, run, script

CLASSES: Any = dict(likelihood="classification", prior_precision=0.5)
X = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def torch() -> Any:
    """Heavy, and no part of the test extra."""
    return pytest.importorskip("torch", reason="torch is not installed: make test-adapters")


def train(torch: Any, module: Any, x: Any, y: Any) -> np.ndarray:
    """To the mode under the prior of CLASSES, in evaluation mode; its outputs."""
    module.eval()
    x, y, own = torch.as_tensor(x), torch.as_tensor(y), list(module.parameters())
    best = torch.optim.LBFGS(own, max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-4)

    def loss() -> Any:
        best.zero_grad()
        f = module(x)
        f = torch.cat([torch.zeros_like(f), f], 1) if f.shape[1] == 1 else f
        total = torch.nn.functional.cross_entropy(f, y, reduction="sum")
        total = total + 0.25 * sum((p**2).sum() for p in own)
        total.backward()
        return total

    best.step(loss)
    with torch.no_grad():
        return module(x).numpy()


def network(torch: Any, outputs: int = 3) -> tuple[Any, np.ndarray]:
    """Trained on labels of its own."""
    torch.manual_seed(0)
    nn = torch.nn
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, outputs))
    with torch.no_grad():
        module[3].weight *= 8
        f = module.eval()(torch.tensor(X)).numpy()
    y = None
    while y is None or (labels(f) != y).any():
        y = labels(f)
        f = train(torch, module, X, y)
    module.train()
    return module, f


def labels(f: np.ndarray) -> np.ndarray:
    return (f[:, 0] > 0).astype(int) if f.shape[1] == 1 else f.argmax(1)


def definition(torch: Any, module: Any, observed: np.ndarray | None) -> dict[str, np.ndarray]:
    """``E[g²]`` by backward passes, one a record and a label."""
    module.eval()
    found = {name: np.zeros(tuple(p.shape)) for name, p in module.named_parameters()}
    for index, x in enumerate(torch.tensor(X)):
        f = module(x[None])
        f = torch.cat([torch.zeros_like(f), f], 1) if f.shape[1] == 1 else f
        logs = torch.log_softmax(f, 1)[0]
        for k, log in enumerate(logs):
            weight = float(log.detach().exp()) if observed is None else float(observed[index] == k)
            slopes = torch.autograd.grad(log, list(module.parameters()), retain_graph=True)
            for name, slope in zip(found, slopes, strict=True):
                found[name] += weight * slope.numpy().astype(float) ** 2
    module.train()
    return found


@pytest.mark.parametrize(("outputs", "which"), [(3, "model"), (3, "empirical"), (1, "model")])
def test_information_is_the_expected_square_of_gradients(
    torch: Any, outputs: int, which: str
) -> None:
    module, f = network(torch, outputs)
    y = labels(f)
    q = from_module(module, X, torch.tensor(y), fisher=which, **CLASSES)
    assert isinstance(q, Product)
    for name, wanted in definition(torch, module, y if which == "empirical" else None).items():
        block = q.blocks[name]
        np.testing.assert_allclose(block.precision, wanted.reshape(-1) + 0.5, rtol=1e-4)
    assert q.blocks["0.weight"].names[:3] == ("[0,0]", "[0,1]", "[1,0]")
    assert module.training and module[2].training  # as it was


def own_modules(torch: Any) -> dict[str, Any]:
    """Networks of linear layers, most of whose gradients are no single product."""
    nn = torch.nn
    functional = nn.functional

    class Net(nn.Module):
        def __init__(self, compute: Any) -> None:
            super().__init__()
            self.first, self.square, self.last = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 3)
            self.compute = compute

        def forward(self, x: Any) -> Any:
            return self.last(self.compute(self, torch.tanh(self.first(x))))

    nets = {
        "a layer each": Net(lambda net, h: torch.tanh(net.square(h))),
        "a layer used twice": Net(lambda net, h: torch.tanh(net.square(torch.tanh(net.square(h))))),
        "weights used elsewhere": Net(
            lambda net, h: functional.linear(torch.tanh(net.square(h)), net.square.weight)
        ),
        "several rows a record": Net(
            lambda net, h: torch.tanh(net.square(torch.stack([h, 2 * h], 1))).sum(1)
        ),
        "a layer called by name": Net(lambda net, h: torch.tanh(net.square(input=h))),
        "a layer with a hook": Net(lambda net, h: torch.tanh(net.square(h))),
        "a layer of one's own beside": Net(lambda net, h: net.square(h) * net.first.bias),
        "one layer": nn.Linear(2, 3),
        "a convolution before": nn.Sequential(
            nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 2, 2, padding=1), nn.Flatten(), nn.Linear(6, 3)
        ),
    }
    nets["a layer with a hook"].square.register_forward_hook(lambda layer, given, made: 2 * made)
    return nets


MODULES = [
    "a layer each",
    "a layer used twice",
    "weights used elsewhere",
    "several rows a record",
    "a layer called by name",
    "a layer with a hook",
    "a layer of one's own beside",
    "one layer",
    "a convolution before",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("which", ["model", "empirical"])
def test_products_of_squares_are_squares_of_gradients(torch: Any, name: str, which: str) -> None:
    torch.manual_seed(1)
    module = own_modules(torch)[name]
    y = np.random.default_rng(0).permutation(labels(module(torch.tensor(X)).detach().numpy()))
    y = np.where(np.arange(len(y)) % 3 == 0, y, (X[:, 0] > 0) + (X[:, 1] > 0.5))
    train(torch, module, X, y)
    q = from_module(module, X, y, fisher=which, **CLASSES)
    assert isinstance(q, Product)
    wanted = definition(torch, module, y if which == "empirical" else None)
    assert q.blocks.keys() == wanted.keys()
    for tensor, squares in wanted.items():
        precision = q.blocks[tensor].precision
        np.testing.assert_allclose(precision, squares.reshape(-1) + 0.5, rtol=1e-4)
    full = from_module(module, X, y, fisher=which, curvature="full", **CLASSES)
    assert isinstance(full, Gaussian)
    diagonal = dict(zip(full.names, np.diagonal(full.precision), strict=True))
    at = [diagonal[f"{name}{entry}"] for name, b in q.blocks.items() for entry in b.names]
    np.testing.assert_allclose(np.concatenate([b.precision for b in q.blocks.values()]), at)


def test_full_covariances_are_those_of_jax(torch: Any) -> None:
    module, f = network(torch)
    q = from_module(module, X, labels(f), curvature="full", **CLASSES)
    params = {name: p.detach().numpy() for name, p in module.named_parameters()}

    def apply(p: Any, x: Any) -> Any:
        hidden = jax.numpy.tanh(x @ p["0.weight"].T + p["0.bias"])
        return hidden @ p["3.weight"].T + p["3.bias"]

    theirs = from_params(params, apply, X, labels(f), curvature="full", **CLASSES)
    place = [theirs.names.index(name) for name in q.names]
    np.testing.assert_allclose(
        q.precision, theirs.precision[np.ix_(place, place)], rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow
def test_a_law_goes_through_a_file_and_back_into_the_module(torch: Any, tmp_path: Any) -> None:
    module, f = network(torch)
    posterity.save(from_module(module, X, labels(f), **CLASSES), tmp_path / "weights.safetensors")
    q: Any = posterity.load(tmp_path / "weights.safetensors")
    other = network(torch)[0]
    torch.nn.init.zeros_(other[0].weight)
    other.load_state_dict(to_state_dict(q, other))
    with torch.no_grad():
        np.testing.assert_allclose(other.eval()(torch.tensor(X)).numpy(), f, atol=1e-5)
    draws = [to_state_dict(q, module, key=key) for key in jax.random.split(jax.random.key(0), 64)]
    drawn = np.stack([draw["3.weight"].numpy().reshape(-1) for draw in draws])
    block = q.blocks["3.weight"]
    off = (drawn - block.mean) * np.sqrt(block.precision)
    assert abs(np.square(off).mean() - 1) < 4 * np.sqrt(2 / off.size)


@pytest.mark.slow
def test_the_last_layer_alone(torch: Any) -> None:
    module, f = network(torch)
    task: Any = dict(only="3", curvature="full", **CLASSES)
    q = from_module(module, X, labels(f), **task)
    assert isinstance(q, Gaussian) and q.names[0] == "3.weight[0,0]" and q.event_shape == (15,)
    ledger = to_ledger(module, "north", X, labels(f), **task)
    np.testing.assert_allclose(ledger.posterior.mean, q.mean, atol=0.02)  # pyright: ignore
    module[0].requires_grad_(False)
    assert from_module(module, X, labels(f), curvature="full", **CLASSES).names == q.names


@pytest.mark.slow
def test_buffers_and_shared_weights(torch: Any) -> None:
    nn = torch.nn
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Linear(2, 2))
    module[3].weight = module[0].weight
    with torch.no_grad():
        module[0].weight *= 8
        module(torch.tensor(X))  # the running means move
        y = module.eval()(torch.tensor(X)).numpy().argmax(1)
    train(torch, module, X, y)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.train()
    q = from_module(module, X, y, **CLASSES)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    state = to_state_dict(q, module, key=jax.random.key(0))
    assert "3.weight" not in q.blocks and torch.equal(state["3.weight"], state["0.weight"])
    assert not torch.equal(state["0.weight"], before["0.weight"])
    assert torch.equal(state["1.running_mean"], before["1.running_mean"])
    assert state["1.num_batches_tracked"].dtype == torch.int64


def recurrent(torch: Any) -> Any:
    """Of layers that no map over records takes."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.GRU(2, 3, batch_first=True)
            self.last = torch.nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            return self.last(self.cell(x)[0][:, -1])

    return Net()


@pytest.mark.slow
def test_recurrent_networks_go_record_by_record(torch: Any) -> None:
    torch.manual_seed(0)
    module, x = recurrent(torch), torch.randn(12, 4, 2)
    with torch.no_grad():
        module.last.weight *= 20
        y = module(x).argmax(1)
    train(torch, module, x, y)
    q = from_module(module, x, y, only="last", **CLASSES)
    with torch.no_grad():
        hidden = module.cell(x)[0][:, -1].double().numpy()
        chances = torch.softmax(module(x), 1).double().numpy()
    wanted = np.einsum("nk,nd->kd", chances * (1 - chances), hidden**2)
    np.testing.assert_allclose(
        q.blocks["last.weight"].precision, wanted.reshape(-1) + 0.5, rtol=1e-4
    )
    # And through the recurrence: one weight, by a difference quotient of the log odds.
    q = from_module(module, x, y, only="cell", **CLASSES)
    with torch.no_grad():
        odds = []
        for step in (-1e-3, 1e-3):
            module.cell.weight_hh_l0[0, 1] += step
            f = module(x).double().numpy()
            odds.append(f[:, 1] - f[:, 0])
            module.cell.weight_hh_l0[0, 1] -= step
    slope = (odds[1] - odds[0]) / 2e-3
    found = q.blocks["cell.weight_hh_l0"].precision[1] - 0.5
    assert found == pytest.approx((chances[:, 0] * chances[:, 1]) @ slope**2, rel=0.02)


def test_five_sites_of_one_net_count_the_prior_once(torch: Any) -> None:
    """A column of which each site's data say little: its own prior must not add up."""
    rng, ledgers, total, slope = np.random.default_rng(1), {}, np.eye(2), np.zeros(2)
    for site in range(5):
        x = rng.normal(size=(30, 2)) * [1.0, 5e-3]
        y = x @ [1.0, 2.0] + 0.1 * rng.normal(size=30)
        precision, own = x.T @ x / 0.01, x.T @ y / 0.01
        module = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            module.weight[:] = torch.tensor(np.linalg.solve(precision + np.eye(2), own))
        total, slope = total + precision, slope + own
        ledgers[f"s{site}"] = to_ledger(
            module, f"s{site}", torch.tensor(x), torch.tensor(y[:, None]), curvature="full",
            likelihood="regression", prior_precision=1.0, noise_variance=0.01,
        )  # fmt: skip
    fused: Any = posterity.fuse(ledgers, rule="product").posterior
    np.testing.assert_allclose(fused.mean, np.linalg.solve(total, slope), rtol=1e-6)
    with torch.no_grad():
        module.weight[0, 1] = 4.0
    with pytest.raises(ParameterError, match="from the mode"):
        to_ledger(
            module, "s4", torch.tensor(x), torch.tensor(y[:, None]), likelihood="regression",
            prior_precision=1.0, noise_variance=0.01,
        )  # fmt: skip


@pytest.mark.slow
def test_bad_input_is_refused(torch: Any) -> None:
    module, f = network(torch)
    y = labels(f)
    with pytest.raises(UsageError, match="Load its state dict into a module"):
        from_module(module.state_dict(), X, y, **CLASSES)
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(y))
    with pytest.raises(UsageError, match=r"torch\.cat"):
        from_module(module, data, y, **CLASSES)
    with pytest.raises(StructureError, match="of type tuple"):
        from_module(torch.nn.LSTM(2, 2), X, y, **CLASSES)
    with pytest.raises(StructureError, match=r"shape \(30, 3\); expected y of shape"):
        from_module(module, X, np.eye(3)[y], **CLASSES)
    with pytest.raises(StructureError, match="at least one record"):
        from_module(module, X[:0], y[:0], **CLASSES)
    with pytest.raises(ParameterError, match="from 0 to 2"):
        from_module(module, X, y + 3, **CLASSES)
    with pytest.raises(StructureError, match="like probabilities"):
        from_module(torch.nn.Sequential(module, torch.nn.Softmax(1)), X, y, **CLASSES)
    with pytest.raises(StructureError, match=r"expected outputs \(n, K\)"):
        from_module(torch.nn.Sequential(module, torch.nn.Flatten(0)), X, y, **CLASSES)
    with pytest.raises(ParameterError, match="NaN or infinity in the outputs"):
        from_module(module, np.where(X > 1, np.nan, X), y, **CLASSES)
    with (
        pytest.warns(ConvergenceWarning, match="no better than"),
        pytest.raises(ParameterError, match="from the mode"),
    ):
        from_module(module, X, (y + 1) % 3, **CLASSES)
    q = from_module(module, X, y, **CLASSES)
    with pytest.raises(StructureError, match="do not fit"):
        to_state_dict(q, torch.nn.Linear(2, 2))
    with pytest.raises(UsageError, match="or its state dict"):
        to_state_dict(q, [1])
    module.requires_grad_(False)
    with pytest.raises(UsageError, match="need a gradient"):
        from_module(module, X, y, **CLASSES)
    with torch.no_grad():
        module[0].weight[0, 0] = float("nan")
    with pytest.raises(ParameterError, match="NaN"):
        from_module(module.requires_grad_(True), X, y, **CLASSES)


@pytest.mark.slow
def test_the_page_runs(torch: Any, tmp_path: Path) -> None:
    """Which the tests of the documentation leave out."""
    page = (ROOT / "docs/adapters/torch.md").read_text(encoding="utf-8")
    path = tmp_path / "page.py"
    path.write_text(script(page.replace("```py\n", "```python\n")), encoding="utf-8")
    printed = run(tmp_path, "Python of docs/adapters/torch.md", str(path))
    assert printed[0] == "['0.bias', '0.weight', '2.bias', '2.weight']"


def test_state_dicts_and_modules_are_networks(torch: Any) -> None:
    """A convolution too, whose flattened image has channels first."""
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 3)
    )
    layers = Layers(
        (Conv((3, 3), 1, 2, padding="same", pool=2), Dense(32, 3, "identity")), image=(8, 8, 1)
    )

    def apply(_: Any, x: Any) -> Any:
        with torch.no_grad():
            return net(torch.tensor(x)).numpy()

    network = from_pytree(net.state_dict(), 0.01, layers=layers, apply=apply)
    assert network == from_pytree(net, 0.01, layers=layers)
    mean, variance = to_pytree(network, net)
    for name, tensor in net.state_dict().items():
        assert torch.equal(mean[name], tensor) and variance[name].shape == tensor.shape


def test_laws_by_tensor_are_refused_by_fuse_until_they_are_networks(torch: Any) -> None:
    net, f = network(torch)
    law = from_module(net, X, labels(f), **CLASSES)
    laws = {"a": law, "b": law}
    with pytest.raises(StructureError, match=r"0\.weight.*3\.weight.*from_pytree"):
        posterity.fuse(laws)
    assert posterity.fuse(laws, matching="identity").rule == "barycenter"
    parts = to_state_dict(law, net), to_state_dict(law, net, at="variance")
    made = from_pytree(*parts, activation="tanh")
    assert isinstance(posterity.fuse({"a": made, "b": made}).posterior, posterity.Network)
