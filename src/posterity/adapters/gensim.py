"""gensim: fitted topic models as ledgers, and back.

``state.get_lambda()`` are the concentrations of the topics and ``state.eta`` those of their prior.
(With ``eta="auto"`` gensim learns another ``model.eta`` but keeps adding the first one.) Their
difference, ``state.sstats``, holds expected word counts: of all documents after a batch fit
(``update_every=0``), and a weighted average over steps after online learning. gensim uses
float32 by default; ledgers hold float64.
"""

from typing import Any

import numpy as np

from posterity.adapters import shared
from posterity.adapters.plates import MEMBERS
from posterity.adapters.shared import library
from posterity.errors import UsageError
from posterity.families import Dirichlet, ExponentialFamily, Plate
from posterity.ledger import Ledger

DETERMINED = frozenset({"corpus", "num_topics", "id2word", "eta"})
"""Constructor arguments that a posterior, its prior and its words determine."""


def to_ledger(model: Any, site: str) -> Ledger:
    """Convert a fitted ``LdaModel`` to the ledger of one site: its prior and its factor.

    An ``LdaMulticore`` is accepted too; a model that saw no documents is refused. The ledger is
    over a :class:`Plate` of :class:`Dirichlet` topics, in the order of the model's dictionary. The
    words of the dictionary, if there is one, name the categories.

    >>> from gensim.models import LdaModel
    >>> corpus = [[(0, 8), (1, 1)], [(1, 1), (2, 8)]]
    >>> model = LdaModel(corpus, num_topics=2, id2word={0: "ship", 1: "sea", 2: "moon"}, passes=5)
    >>> to_ledger(model, "north").posterior.members.names
    ('ship', 'sea', 'moon')
    """
    if not isinstance(model, _lda_model()):
        expected = "a fitted LdaModel: other models of gensim are no Dirichlet posteriors"
        raise shared.unsupported(model, expected)
    if not model.state.numdocs:  # before any document, counts are random initial values
        expected = "one fitted, by corpus= or update()"
        raise UsageError(found="an LdaModel without documents", expected=expected)
    counts = np.asarray(model.state.sstats, dtype=np.float64)
    prior = np.broadcast_to(np.asarray(model.state.eta, dtype=np.float64), counts.shape)
    with shared.at_site(site):
        before = Plate(Dirichlet.from_standard(prior))
        after = Plate(Dirichlet.from_standard(prior + counts))
    ledger = shared.Laws(after, before).ledger(site)
    words = [model.id2word[index] for index in range(model.num_terms)]
    # Without a dictionary gensim names words by numbers, which other sites do not share.
    known = any(str(word) != str(index) for index, word in enumerate(words))
    return ledger.named({MEMBERS: list(map(str, words))}) if known else ledger


def to_model(posterior: ExponentialFamily | Ledger, **parameters: Any) -> Any:
    """Convert a posterior to a fitted ``LdaModel`` that can infer the topics of documents.

    Args:
        posterior: a :class:`Plate` of :class:`Dirichlet`, or a ledger over one, whose prior
            becomes ``eta``. Words are the names of its categories, or numbers as text.
        parameters: constructor arguments that no posterior holds, such as ``alpha`` (by default
            one over the number of topics), ``random_state`` or ``dtype`` (by default ``float64``);
            others are a UsageError.

    Posteriors that no such model can represent are a StructureError.

    >>> topics = Plate(Dirichlet.from_standard([[9.0, 1.0, 1.0], [1.0, 1.0, 9.0]]))
    >>> model = to_model(topics.named({"members": ["ship", "sea", "moon"]}))
    >>> model.get_document_topics([(0, 9)], minimum_probability=0.5)[0][0]
    0
    """
    shared.check_undetermined(parameters, DETERMINED)

    def topics(law):
        plate = getattr(law, "is_plate", False)
        return plate and law.members.emits_symbols and law.weights is None

    prior, plate = shared.prior_and_law(
        posterior,
        topics,
        "gensim",
        expected="topics: a Plate of Dirichlet without weights",
        fix="Leave the weights out; each document has its own.",
    )
    values = plate.members.concentration
    names = plate.members.names or map(str, range(values.shape[1]))
    parameters.setdefault("dtype", np.float64)
    eta: Any = "symmetric"
    if prior is not None:  # one row if all topics share it, else one per topic
        eta = np.asarray(prior.members.concentration).astype(parameters["dtype"])
        eta = eta[0] if (eta == eta[:1]).all() else eta
    words_by_number = dict(enumerate(names))
    model = _lda_model()(num_topics=plate.size, id2word=words_by_number, eta=eta, **parameters)
    model.state.sstats = (values - model.eta.astype(np.float64)).astype(model.dtype)
    model.state.numdocs = 1  # their number is unknown, but it is not zero
    model.sync_state()
    return model


def _lda_model() -> type:
    return library("gensim.models", extra="gensim").models.LdaModel
