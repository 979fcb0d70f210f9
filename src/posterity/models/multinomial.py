"""Multinomial logistic regression."""

from typing import Any, ClassVar

import numpy as np

from posterity.arguments import at_least
from posterity.arrays.namespace import namespace
from posterity.arrays.tree import static
from posterity.arrays.typing import Float, Real
from posterity.families import Gaussian
from posterity.models.base import ExpectedModel
from posterity.models.data import INPUTS, check_data, labels
from posterity.models.nodes import cubature, in_parts, rotations
from posterity.models.records import Records


class MultinomialRegression(ExpectedModel[Gaussian]):
    """Multinomial regression of labels ``y`` (n,) in {0, ..., classes - 1}; data ``(x, y)``;
    posterior Gaussian.

    The log odds of class ``k > 0`` against class 0 are ``x_k · z_k``. ``z`` holds the coefficients
    of class 1, of class 2, and so on, and ``x`` (n, (classes - 1) d) the columns of each; if all
    classes have the same columns, use ``np.tile(x, classes - 1)``.

    >>> import numpy as np
    >>> model, x = MultinomialRegression(3), np.ones((1, 1))
    >>> z, y = np.log([2.0, 3.0]), np.array([2])
    >>> np.exp(model.log_likelihood(z, (np.tile(x, 2), y))).round(3)
    array([0.5])
    """

    classes: int = static()

    numpy: ClassVar[bool] = True
    families = (Gaussian,)
    optima = "one"
    at_a_time: ClassVar[int] = 1 << 19
    """Number of predictors at nodes that are processed together."""
    narrow: ClassVar[float] = 0.5
    """Largest sum of variances of a record's log odds that the nodes resolve."""

    def __post_init__(self) -> None:
        at_least(2).check(classes=self.classes)

    def check(self, data: Any) -> None:
        check_data(data, (INPUTS, labels(self.classes, "y of shape (n,)")))

    def log_likelihood(self, z: Any, data: Any) -> Float[Real, " n"]:
        x, y = data
        np_ = namespace(z, x).np
        logits = self._logits(np_.einsum("nai,ai->na", self._blocks(x), self._blocks(z)))
        chosen = (np_.asarray(y)[:, None] == np_.arange(self.classes)) * logits
        return chosen.sum(-1) - namespace(z, x).logsumexp(logits)

    def expected_log_likelihood(self, q: Gaussian, data: Any) -> Float[Real, " n"]:
        return self.expectations(*self.predictors(q, data[0]), data[1])[0]

    def expected_factor(self, q: Gaussian, records: Records) -> tuple[Float[Real, ""], Gaussian]:
        (x, y), weights = records.data, records.weights
        np_ = namespace(q.mean).np
        value, slope, bend = self.expectations(*self.predictors(q, x), y)
        blocks = self._blocks(np_.asarray(x)).swapaxes(0, 1)
        pairs = zip(weights * slope.T, blocks, strict=True)
        gradient = np_.concatenate([own @ block for own, block in pairs])
        rows = [
            [(block.T * (weights * own)) @ other for other, own in zip(blocks, row, strict=True)]
            for block, row in zip(blocks, bend.transpose(1, 2, 0), strict=True)
        ]
        return weights @ value, q.at_mean(gradient, np_.block(rows))

    def predictors(self, q: Gaussian, x: Any) -> tuple[Float[Real, "n k"], Float[Real, "n k k"]]:
        """Return the means and covariances of the log odds of each record."""
        np_ = namespace(q.mean).np
        x = self._blocks(np_.asarray(x))
        size = len(q.mean) // (self.classes - 1)
        covariance = q.covariance.reshape(2 * (self.classes - 1, size))
        mean = np_.einsum("nai,ai->na", x, self._blocks(q.mean))
        return mean, np_.einsum("nai,aibj,nbj->nab", x, covariance, x, optimize=True)

    def expectations(
        self, mean: Float[Real, "n k"], covariance: Float[Real, "n k k"], y: Any
    ) -> tuple[Float[Real, " n"], Float[Real, "n k"], Float[Real, "n k k"]]:
        """Return ``E[log p(y | f)]``, its gradient and minus its Hessian in the mean of ``f``."""
        numbers = cubature(self.classes - 1)[0].size
        turns = rotations(self.classes - 1)
        y = namespace(mean).np.asarray(y)
        each = mean, covariance, y, turns[np.arange(len(mean)) % len(turns)]
        value, slope, bend = in_parts(self._expected, each, numbers, at_a_time=self.at_a_time)
        return value, slope, bend

    def _expected(self, mean: Any, covariance: Any, y: Any, turn: Any) -> tuple[Any, Any, Any]:
        """Return the same for a block of records, with nodes rotated from record to record.

        If log odds are wider than the nodes resolve, as for a class without records, the Hessian
        is by Stein's lemma from the same sums over nodes, so that it is consistent with the value
        and a search converges.
        """
        xp = namespace(mean)
        count = self.classes - 1
        np_ = xp.np
        eye = xp.np.eye(count)
        nodes, chances = cubature(count)
        spread = np_.trace(covariance, axis1=1, axis2=2)
        tiny = np.finfo(float).eps * spread[:, None, None] + np.finfo(float).tiny
        root = xp.cholesky(covariance + tiny * eye)
        logits = self._logits(mean + (root @ turn @ nodes.T).transpose(2, 0, 1))
        logs = logits - xp.logsumexp(logits)[..., None]
        chosen = 1.0 * (y[:, None] == np_.arange(self.classes))
        value = (np_.tensordot(chances, logs, 1) * chosen).sum(-1)
        p = np_.exp(logs)[..., 1:]
        each = np_.tensordot(chances, p, 1)
        both = np_.einsum("m,mna,mnb->nab", chances, p, p, optimize=True)
        with_nodes = np_.einsum("m,mna,mb->nab", chances, p, nodes, optimize=True)
        with_nodes = with_nodes @ turn.swapaxes(1, 2)
        lower = np_.tril(root.swapaxes(1, 2) @ with_nodes)
        middle = lower + lower.swapaxes(1, 2) * (1 - eye)
        inverse = xp.inverse_lower(root).swapaxes(1, 2)
        half = inverse @ middle
        wide = inverse @ half.swapaxes(1, 2)
        narrow = (spread < self.narrow)[:, None, None]
        return value, chosen[:, 1:] - each, np_.where(narrow, each[..., None] * eye - both, wide)

    def _blocks(self, own: Any) -> Any:
        return own.reshape(*own.shape[:-1], self.classes - 1, -1)

    def _logits(self, f: Any) -> Any:
        """Prepend the log odds of class 0, which are zero."""
        np_ = namespace(f).np
        return np_.concatenate([np_.zeros((*f.shape[:-1], 1), f.dtype), f], -1)
