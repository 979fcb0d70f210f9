"""Latent Dirichlet allocation: documents are mixtures of topics, which sites share.

A document's mixture ``θ ~ Dirichlet(α)`` is integrated out by its optimal variational posterior
``Dirichlet(γ)``, computed anew for every ``q`` over the topics (blei2003, hoffman2010):

    r_wk ∝ exp(E[log θ_k] + E[log φ_kw]),    γ_k = α + Σ_w n_w r_wk.

The bound of a document is

    Σ_w n_w log Σ_k exp(E[log θ_k] + E[log φ_kw]) - KL(Dirichlet(γ) ‖ Dirichlet(α)).

At the optimal ``γ`` its derivative in ``E[log φ_kw]`` is ``n_w r_wk``: the natural gradient is the
expected counts.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from posterity.arguments import COUNT, POSITIVE, one_of
from posterity.arrays.namespace import NUMPY, Namespace, namespace
from posterity.arrays.tree import static
from posterity.arrays.typing import Float, Int, PyTree, Real
from posterity.errors import ParameterError, StructureError
from posterity.families import Dirichlet, ExponentialFamily, Plate
from posterity.models.base import VARIANCE, ExpectedModel, Optima
from posterity.models.data import Column, pair
from posterity.models.tables import Names, array

Array = np.ndarray
WORDS = Column(
    "words of shape (n, l)", (None,), "word numbers 0, 1, 2, …", lambda x: (x >= 0) & (x % 1 == 0)
)
COUNTS = Column("counts of shape (n, l)", (None,), "counts of at least 0", lambda x: x >= 0)
ROOM = 2**14
"""Number of words of documents processed together, so that they fit the processor's cache."""
TOGETHER = 16
"""Number of documents processed together under JAX."""
TOPICS = one_of("mean", "geometric")


TABLE = "a table of counts of words"


class Documents(NamedTuple):
    """Word numbers (n, l) of each document and their counts (n, l), padded by counts of 0.

    It is a pair of arrays whose first axis counts documents, the format of models' data.
    """

    words: Int[Array, "n l"]
    counts: Float[Array, "n l"]

    @property
    def totals(self) -> Float[Array, " n"]:
        """Number of words of each document, with repetitions."""
        return np.asarray(self.counts).sum(1)


def documents(table: Any, vocabulary: Names = None) -> Documents:
    """Make documents from a table of counts (n, V) with a document in each row: a NumPy array, a
    sparse array of SciPy, or a data frame, whose columns are put in the order of the words of the
    ``vocabulary``. Counts may be fractional, and become float64.

    Raises:
        StructureError: if it is not a table of numbers, or a data frame of other words or without a
            vocabulary.
        ParameterError: for NaN, infinite and negative counts.

    >>> documents(np.array([[0, 2, 1], [3, 0, 0]])).words
    array([[1, 2],
           [0, 0]], dtype=int32)
    """
    starts, words, counts = _rows(table, vocabulary)
    sizes = np.diff(starts)
    longest = max(int(sizes.max(initial=0)), 1)
    shape = len(sizes), longest
    out = Documents(np.zeros(shape, np.int32), np.zeros(shape))
    document = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(words)) - starts[:-1][document]
    out.words[document, place], out.counts[document, place] = words, counts
    return out


def _rows(table: Any, vocabulary: Names) -> tuple[Array, Array, Array]:
    """Return the start of each document in the list of all words, the words, and their counts."""
    sparse = hasattr(table, "tocsr")
    counts: Any = table.tocsr(copy=True) if sparse else array(table, vocabulary, TABLE)
    if counts.ndim != 2 or counts.dtype.kind not in "biuf":
        raise StructureError(
            found=f"{TABLE} of shape {counts.shape} and dtype {counts.dtype}",
            expected="numbers (n, V), a document a row and a word a column",
            fix="Count every word of the vocabulary in every document first, as "
            "sklearn.feature_extraction.text.CountVectorizer does.",
        )
    if sparse:
        counts.sum_duplicates()
        values, words, sizes = counts.data, counts.indices, np.diff(counts.indptr)
    else:
        rows, words = np.nonzero(counts)
        values, sizes = counts[rows, words], np.bincount(rows, minlength=len(counts))
    values = values.astype(np.float64)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ParameterError(
            found="counts that are NaN, infinite or negative",
            expected="how often each word occurs",
            fix="Check how the documents were counted; scores such as tf-idf are no counts.",
        )
    return np.concatenate([[0], np.cumsum(sizes)]), words, values


def by_length(counts: Float[Array, "n l"], room: int) -> list[tuple[Int[Array, " some"], int]]:
    """Return groups of documents of at most ``room`` entries, by increasing length, each with its
    padded length, so that a long document does not increase the padding of the others.
    """
    used = np.asarray(counts) > 0
    last = used.shape[1] - used[:, ::-1].argmax(1)  # one more than the place of the last word
    lengths = np.where(used.any(1), last, 0)
    order = np.argsort(lengths, kind="stable")
    groups, start = [], 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * max(lengths[order[end]], 1) <= room:
            end += 1
        groups.append((order[start:end], max(int(lengths[order[end - 1]]), 1)))
        start = end
    return groups


class TopicModel(ExpectedModel[Plate]):
    """A topic model of documents ``(words, counts)``, both (n, l), see :func:`documents`.

    The posterior is a :class:`Plate` of :class:`Dirichlet` without weights: ``K`` topics over
    ``vocabulary`` words. Likelihoods are variational lower bounds on documents' log evidence in
    nats, without the multinomial coefficient, as in scikit-learn and gensim.

    Args:
        vocabulary: number of words ``V``.
        concentration: prior concentration ``α`` of a document's mixture, for each topic.
        iterations: largest number of steps for a document's mixture.
        tolerance: mean change of a document's expected counts at which the steps end.

    Source: blei2003; hoffman2010.

    >>> from posterity.models import TopicModel, documents
    >>> topics = Plate(Dirichlet.from_standard([[9.0, 1.0, 1.0], [1.0, 1.0, 9.0]]))
    >>> TopicModel(3, concentration=0.5).mixtures(topics, documents([[8, 1, 0]])).mean.round(1)
    array([[0.9, 0.1]])
    """

    vocabulary: int = static()
    concentration: float = static(default=0.1)
    iterations: int = static(default=100)
    tolerance: float = static(default=1e-4)

    families: ClassVar[tuple[type[ExponentialFamily], ...]] = (Plate,)
    optima: ClassVar[Optima] = "several"
    columns: ClassVar[tuple[Column, ...]] = (WORDS, COUNTS)

    def __post_init__(self) -> None:
        VARIANCE.check(concentration=self.concentration)
        COUNT.check(vocabulary=self.vocabulary, iterations=self.iterations)
        POSITIVE.check(tolerance=self.tolerance)

    def prior(self, topics: int, concentration: float) -> Plate:
        """Return the prior of exchangeable topics with one concentration for all words."""
        shape = (topics, self.vocabulary)
        return Plate(Dirichlet.from_standard(np.full(shape, float(concentration))))

    def check(self, data: PyTree) -> None:
        words, counts = map(np.asarray, pair(data))
        super().check((words, counts))
        if words.shape != counts.shape:
            raise StructureError(
                found=f"words of shape {words.shape} and counts of shape {counts.shape}",
                expected="one shape (n, l)",
                fix="Make both by posterity.models.documents.",
            )
        if words.max(initial=0) >= self.vocabulary:
            raise ParameterError(
                found=f"word number {words.max()}",
                expected=f"numbers from 0 to {self.vocabulary - 1}",
                fix="Number words as the topics do: see posterity.artifact.aligned.",
            )

    # --- likelihood and expected counts ---------------------------------------------------------

    def expected_log_likelihood(self, q: Plate, data: PyTree) -> Float[Real, " n"]:
        return self._bounds(_log_topics(q), *data)

    def log_likelihood(self, z: PyTree, data: PyTree) -> Float[Real, " n"]:
        """Return the bound of each document in nats at topics ``z = (φ, None)``, ``φ`` (K, V)."""
        return self._bounds(namespace(z[0], data[0]).np.log(z[0]), *data)

    def expected_counts(self, q: Plate, data: PyTree) -> Plate:
        """Return ``Σ_d n_w r_wk`` (K, V) as a factor; its sum with the prior is one step of
        coordinate ascent.
        """
        self.check(data)
        log_topics = np.asarray(_log_topics(q))
        table = np.zeros(log_topics.T.shape)
        for _, part in self._parts(log_topics, Documents(*data)):
            add_counts(table, part)
        return Plate(Dirichlet(np.ascontiguousarray(table.T)))

    # --- predictions of the fused model ---------------------------------------------------------

    def mixtures(self, q: Plate, data: PyTree) -> Dirichlet:
        """Return the variational posterior of each document's mixture over topics, a batch (n,);
        for a document without words it is the prior.
        """
        self._check_topics(q, data)
        log_topics = np.asarray(_log_topics(q))
        result = np.full((len(data[0]), q.size), float(self.concentration))
        for rows, part in self._parts(log_topics, Documents(*data)):
            result[rows] = part.gamma
        return Dirichlet.from_standard(result)

    def log_predictive(
        self,
        q: Plate,
        seen: PyTree,
        unseen: PyTree,
        *,
        topics: Literal["mean", "geometric"] = "mean",
    ) -> Float[Array, " n"]:
        """Return the log probability, in nats, of each document's unseen words given those seen.

        The mixture is inferred from the seen words (document completion). An unseen word has
        probability ``Σ_k E[θ_k] E[φ_kw]``. With ``topics="geometric"`` it is ``Σ_k E[θ_k] exp E[log
        φ_kw]``, which is lower and does not sum to one, but is sometimes reported. Divide the sum
        by ``unseen.totals.sum()`` for nats per word.
        """
        TOPICS.check(topics=topics)
        self._check_topics(q, unseen)
        if len(seen[0]) != len(unseen[0]):
            raise StructureError(
                found=f"words seen of {len(seen[0])} documents, and unseen of {len(unseen[0])}",
                expected="both of the same documents, in one order",
                fix="Split the words of each document; one without words is a row of zeros.",
            )
        chances = word_chances(q, topics)
        return log_completion(self.mixtures(q, seen).mean, chances, Documents(*unseen))

    def perplexity(self, q: Plate, data: PyTree) -> float:
        """Return ``exp(-bounds / words)`` of these documents, given the topics; lower is better."""
        self._check_topics(q, data)
        total = Documents(*data).totals.sum()
        return float(np.exp(-self.expected_log_likelihood(q, data).sum() / max(total, 1.0)))

    # --- NumPy ----------------------------------------------------------------------------------

    def _check_topics(self, q: Plate, data: PyTree) -> None:
        fits = q.is_plate and q.members.emits_symbols
        if not fits or q.weights is not None or q.members.own_size != self.vocabulary:
            raise StructureError(
                found=f"topics {q!r}",
                expected=f"a Plate of Dirichlet over {self.vocabulary} words, without weights",
                fix="Give the model the size of the vocabulary that the topics have.",
            )
        self.check(data)

    def _parts(self, log_topics: Array, data: Documents) -> Iterator[tuple[Array, "_Part"]]:
        table, shift = scaled(log_topics.T)
        words, counts = map(np.asarray, data)
        for rows, length in by_length(counts, max(ROOM // 4, ROOM * 16 // table.shape[1])):
            some = words[rows, :length], counts[rows, :length].astype(table.dtype)
            part = mixtures_of(table, *some, self.concentration, self.iterations, self.tolerance)
            yield rows, part._replace(shift=shift[some[0]])

    def _bounds(
        self, log_topics: Float[Real, "k v"], words: Int[Real, "n l"], counts: Real
    ) -> Float[Real, " n"]:
        xp = namespace(words, log_topics)
        if xp is not NUMPY:
            return _traced_bounds(xp, log_topics, words, counts, self)
        bounds = np.zeros(len(words))
        for rows, part in self._parts(log_topics, Documents(words, counts)):
            bounds[rows] = _bound(xp, part, self.concentration)
        return bounds


def word_chances(q: Plate, topics: Literal["mean", "geometric"] = "mean") -> Float[Array, "k v"]:
    """Return word probabilities of topics: ``E[φ]``, or ``exp E[log φ]``, which sum to less."""
    members: Any = q.members
    return np.asarray(members.mean if topics == "mean" else np.exp(_log_topics(q)))


def log_completion(
    mixtures: Float[Array, "n k"], chances: Float[Array, "k v"], unseen: Documents
) -> Float[Array, " n"]:
    """Return the log probability, in nats, of each document's words given its mixture of topics.

    A word of zero probability in all topics makes it minus infinity.
    """
    result, words, counts = np.zeros(len(mixtures)), *map(np.asarray, unseen)
    for rows, length in by_length(counts, ROOM):
        own, number = np.take(chances.T, words[rows, :length], axis=0), counts[rows, :length]
        some = np.matmul(own, mixtures[rows][:, :, None])[..., 0]
        with np.errstate(divide="ignore"):
            result[rows] = (number * np.log(np.where(number > 0, some, 1.0))).sum(1)
    return result


class _Part(NamedTuple):
    """A group of documents: words (b, l), counts, the words' topic weights (b, l, k), and ``γ``.

    ``mixture`` is ``exp E[log θ]``, and ``norm`` the sum over topics for each word, in units of
    ``exp(shift)``.
    """

    words: Any
    counts: Any
    topics: Any
    gamma: Any
    mixture: Any
    norm: Any
    shift: Any = 0.0


def scaled(log_words: Float[Array, "v k"]) -> tuple[Float[Array, "v k"], Float[Array, " v"]]:
    """Return ``exp`` of each word's row relative to its largest entry, and that entry's logarithm.

    Entries are bounded below so that neither they nor their squares underflow.
    """
    shift = log_words.max(1)
    least = np.log(np.finfo(log_words.dtype).tiny) / 2.1
    return np.exp(np.maximum(log_words - shift[:, None], least)), shift


def mixtures_of(
    table: Float[Array, "v k"],
    words: Int[Array, "b l"],
    counts: Float[Array, "b l"],
    concentration: float,
    iterations: int,
    tolerance: float,
) -> _Part:
    """Return documents' mixtures under topics, given by their :func:`scaled` table."""
    xp, topics = namespace(table), np.take(table, words, axis=0)
    start = concentration + counts.sum(1, keepdims=True) / table.shape[1]
    gamma = np.broadcast_to(start, (len(words), table.shape[1])).astype(table.dtype)
    for _ in range(iterations):
        new = _step(xp, gamma, topics, counts, concentration)
        moved = np.abs(new - gamma).mean(1).max(initial=0.0)
        gamma = new
        if moved < tolerance:
            break
    mixture = _mixture(xp, gamma)
    norm = np.matmul(topics, mixture[..., None])[..., 0]
    return _Part(words, counts, topics, gamma, mixture, norm)


def add_counts(table: Float[Array, "v k"], part: _Part) -> None:
    """Add a part's expected counts of each word in each topic."""
    rates = (part.counts / part.norm)[..., None] * part.topics
    rates *= part.mixture[:, None, :]
    used = part.counts > 0
    order = np.argsort(part.words[used], kind="stable")
    words = part.words[used][order]
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    if len(starts):
        table[words[starts]] += np.add.reduceat(rates[used][order], starts, axis=0)


# --- for NumPy and JAX ---------------------------------------------------------------------------


def _log_topics(q: Plate) -> Float[Real, "k v"]:
    return q.members.mean_parameters


def _mixture(xp: Namespace, gamma: Float[Real, "*b k"]) -> Float[Real, "*b k"]:
    """Return ``exp E[log θ]``, bounded above zero."""
    logs = xp.digamma(gamma) - xp.digamma(gamma.sum(-1, keepdims=True))
    return xp.np.exp(xp.np.maximum(logs, np.log(np.finfo(gamma.dtype).tiny) / 2.1))


def _step(xp: Namespace, gamma: Real, topics: Real, counts: Real, concentration: float) -> Any:
    mixture = _mixture(xp, gamma)
    norm = xp.np.matmul(topics, mixture[..., None])[..., 0]
    weights = xp.np.matmul((counts / norm)[..., None, :], topics)[..., 0, :]
    return concentration + mixture * weights


def _bound(xp: Namespace, part: _Part, concentration: float) -> Float[Real, "*b"]:
    """Return the words' log likelihood less the mixture's divergence from its prior, in nats."""
    gamma, size = part.gamma, part.gamma.shape[-1]
    gammaln, total = xp.special.gammaln, gamma.sum(-1)
    logs = xp.digamma(gamma) - xp.digamma(total[..., None])
    prior = gammaln(np.float64(size * concentration)) - size * gammaln(np.float64(concentration))
    divergence = gammaln(total) - gammaln(gamma).sum(-1) - prior
    divergence = divergence + ((gamma - concentration) * logs).sum(-1)
    fit = (part.counts * (xp.np.log(part.norm) + part.shift)).sum(-1)
    return fit - divergence


def _traced_bounds(
    xp: Namespace, log_topics: Real, words: Real, counts: Real, model: TopicModel
) -> Float[Real, " n"]:
    """Return the bounds by JAX in batches of documents; derivatives hold the mixtures fixed."""
    import jax

    np_, stop = xp.np, jax.lax.stop_gradient
    shift = stop(log_topics).max(0)
    least = np.log(np.finfo(log_topics.dtype).tiny) / 2.1
    table = np_.exp(np_.maximum(log_topics - shift, least)).T

    @jax.checkpoint
    def one(document: PyTree) -> Any:
        own, number = document
        number = number.astype(table.dtype)
        topics = table[own]
        fixed = stop(topics)
        start = np_.full(table.shape[1], model.concentration + number.sum() / table.shape[1])

        def step(state: PyTree) -> Any:
            made, gamma, _ = state
            new = _step(xp, gamma, fixed, number, model.concentration)
            return made + 1, new, np_.abs(new - gamma).mean()

        moving = lambda state: (state[0] < model.iterations) & (state[2] >= model.tolerance)
        begin = (0, stop(start).astype(table.dtype), np_.asarray(np_.inf, table.dtype))
        gamma = jax.lax.while_loop(moving, step, begin)[1]
        mixture = _mixture(xp, stop(gamma))
        part = _Part(own, number, topics, gamma, mixture, topics @ mixture, shift[own])
        return _bound(xp, part, model.concentration)

    return jax.lax.map(one, (np_.asarray(words), np_.asarray(counts)), batch_size=TOGETHER)
