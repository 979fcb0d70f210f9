"""One site of a federation by itself: what it keeps, and what it does with a token.

A site needs its :class:`SiteState`, the agreement, its records and the token that reached it, and
nothing of any other site: so it alone sees to it that its factor counts exactly once.
"""

import dataclasses
from typing import Any

from posterity.arrays.typing import KeyArray
from posterity.checks import check_same_structure
from posterity.entries import Entry
from posterity.errors import LedgerError, ParameterError
from posterity.federation.agreement import Agreement
from posterity.federation.driver import Federation
from posterity.federation.messages import FIRST, Epoch, Token
from posterity.federation.site import Site
from posterity.federation.state import State
from posterity.federation.visit import Visit, answered, question, without_turn


@dataclasses.dataclass(frozen=True)
class SiteState:
    """What a site keeps between two visits. Immutable, and plain but for the factor."""

    name: str
    entry: Entry | None = None
    """Its factor and the version of it; None before its first turn."""
    count: int = 0
    """Local steps that it has taken."""
    epoch: Epoch = FIRST
    """The newest epoch of which it has seen a token."""
    answered: int = -1
    """The sequence number of the token that it answered last in that epoch."""
    counted: bool = False
    """Whether the tokens of that epoch hold its factor."""
    leaving: bool = False
    """Whether its factor leaves when the token next comes."""

    def has_answered(self, token: Token) -> bool:
        """Whether the token is the one that it answered last: then the same answer goes out."""
        return (token.epoch, token.sequence) == (self.epoch, self.answered)

    def take(
        self, agreed: Agreement, token: Token, step: int | None = None
    ) -> tuple["SiteState", State]:
        """The site in the token's epoch, and the federation's state as far as it knows of it.

        ``step`` is the number of that state, the token's by default.
        An epoch begins without the site's factor, unless it was told otherwise: the whole of it is
        added when the first of its tokens comes.

        Raises:
            LedgerError: if the token is of a lower epoch, or was answered or overtaken.
            ParameterError: if the sum is beyond the range of float64.
        """
        own = self
        if token.epoch > own.epoch:
            own = dataclasses.replace(own, epoch=token.epoch, answered=-1, counted=False)
        if token.epoch < own.epoch or token.sequence <= own.answered:
            raise LedgerError(
                found=f"a token of {named(token)} at site {own.name!r}",
                expected=f"one above epoch {own.epoch[0]}, sequence {own.answered}",
                fix="Drop it: it is a replay, or was overtaken.",
            )
        exact_sum, entry = token.exact_sum, own.entry
        if not own.counted and entry is not None and entry.factor is not None:
            exact_sum = exact_sum.changed(add=[entry.factor])
        entries = {} if entry is None else {own.name: entry}
        leaving = (own.name,) if own.leaving else ()
        counts = {own.name: own.count} if own.count else {}
        step = token.sequence if step is None else step
        known = State(agreed.prior, exact_sum, entries, counts, step, token.epoch, leaving=leaving)
        return own, known

    def send(self, token: Token, after: State) -> tuple["SiteState", Token]:
        """The site once its turn with the token led to ``after``, and the token that it sends on.

        That is to be kept before it is sent.
        """
        name, leaving = self.name, self.name in after.leaving
        entry, count = after.entries.get(name), after.counts.get(name, self.count)
        kept = SiteState(name, entry, count, token.epoch, token.sequence, True, leaving)
        place = (token.agreement, token.epoch, token.sequence + 1)
        return kept, Token(*place, after.exact_sum, name, token.digest)


def turn(
    site: Site, own: SiteState, token: Token, *, key: KeyArray
) -> tuple[SiteState, Token, Visit]:
    """A whole turn of a site: it takes the token in, improves its factor, and sends it on.

    What is no distribution, for lack of others' factors, it only relays; and while no distribution
    would be left without it, it does not leave yet.

    Pure: the same arguments give the same token bit for bit, wherever it runs.

    Raises:
        StructureError: if the token is of another family or shape than the prior.
        LedgerError, ParameterError: as of :meth:`SiteState.take`.
        SiteError: if the site fails, unless the agreement passes over that.
    """
    agreed = site.agreement
    check_same_structure(agreed.prior, token.posterior, f"a token of {named(token)}")
    own, known = own.take(agreed, token)
    try:
        result = without_turn(agreed, known, own.name)
    except ParameterError:  # for lack of others' factors: it leaves when a token next comes
        result = known, Visit(known.step, own.name, "refused")
    if result is None and site.records.silent:
        result = known, Visit(known.step, own.name, "relayed")
    if result is None and not agreed.admits(known.posterior):
        result = known, Visit(known.step, own.name, "refused")  # for lack of others' factors
    if result is None:
        asked = question(agreed, known, own.name, known.posterior, key)
        answer: Any = Federation(agreed, {own.name: site}).ask(asked)
        result = answered(agreed, known, answer)
    after, visit = result
    return *own.send(token, after), visit


def named(token: Token) -> str:
    """The place of a token in words."""
    return f"epoch {token.epoch[0]}, sequence {token.sequence}"
