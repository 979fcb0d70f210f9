"""Refinement: sites continue training from a shared posterior, and their results are averaged.

From the shared ``q`` each site trains its own ``q_j``, with ``q`` as the prior. A round gives
``Σ w_j q_j`` in natural parameters, where ``w_j`` is the site's share of the records' weight. In
the ledger each factor changes by ``w_j (q_j - q)``, so prior and factors still sum to the
posterior. Averages of proper distributions are proper, so no step has to be shortened.
"""

from typing import Any

from posterity.arguments import COUNT, POSITIVE
from posterity.arrays.tree import static
from posterity.arrays.typing import KeyArray
from posterity.errors import UsageError
from posterity.families.network import Network
from posterity.inference.update import LocalUpdate, TrainedApart
from posterity.models.base import Model
from posterity.models.neural import NeuralNetwork
from posterity.models.records import Records
from posterity.networks.training import fit


class Refinement(TrainedApart):
    """Local training of a fused network in :func:`posterity.federate`.

    Units are not permuted: each site trains the shared network as it is.

    Args:
        steps: number of steps of Adam in one visit.
        temperature: weight of the divergence from the shared posterior, which preserves
            information from other sites.
        batch_size: number of records per step.
        learning_rate: step size, as in :func:`posterity.networks.train`.

    A posterior that is refined in many rounds counts its data more than once. Forgetting a site
    removes its factor with all changes of its rounds. Its influence on the other factors remains
    until further rounds.
    """

    learning_rate: float = static()

    def __init__(
        self,
        *,
        steps: int = 250,
        temperature: float | int = 0.1,
        batch_size: int = 100,
        learning_rate: float = 2e-3,
    ):
        COUNT.check(steps=steps, batch_size=batch_size)
        POSITIVE.check(temperature=temperature, learning_rate=learning_rate)
        # by name: type checkers take TrainedApart for a dataclass with a generated __init__
        LocalUpdate.__init__(self, steps=steps, temperature=temperature, batch_size=batch_size)
        self.learning_rate = float(learning_rate)

    def resolve(self, model: Model, q: Any) -> "Refinement":
        """Return itself. Raises UsageError if model and prior have different networks."""
        layers = None
        if isinstance(model, NeuralNetwork) and model.noise_variance is not None:
            layers = model.layers
        if layers is None or getattr(q, "network_layers", None) != layers:
            raise UsageError(
                found=f"a {type(model).__name__} and a prior {q!r}",
                expected="a NeuralNetwork of one noise, of the layers of the prior, a Network",
                fix="Pass NeuralNetwork.of_layers(prior.layers).",
            )
        return self

    @property
    def rule(self) -> str:
        return (
            f"{self.steps} steps of Adam a visit from the shared posterior, batches of "
            f"{self.batch_size}, divergence times {self.temperature}; weighed by records"
        )

    def trained(self, model: Model, view: Any, records: Records, *, key: KeyArray) -> Network:
        assert isinstance(model, NeuralNetwork) and self.batch_size is not None
        assert model.noise_variance is not None
        # A loss of weight w is equivalent, up to a factor, to a divergence of weight 1/w.
        temperature = self.temperature / float(records.weights[0])
        trained = fit(
            view.layers,
            records.data,
            key=key,
            prior=view,
            likelihood=model.likelihood,
            noise_variance=model.noise_variance,
            temperature=temperature,
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            start=view,
        )
        return trained.posterior
