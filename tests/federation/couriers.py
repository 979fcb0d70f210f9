"""Couriers for tests: to sites of this process, some of which fail."""

from collections.abc import Callable

from posterity.federation import Federation
from posterity.federation.messages import Answer, Question
from posterity.federation.site import failure_of


class Checked:
    """A courier to the sites of a federation; a question is first given to ``check``, whose errors
    are the site's.
    """

    def __init__(self, federation: Federation, check: Callable[[Question], None]):
        self.federation, self.check = federation, check

    def prepare(self, questions) -> None:
        pass

    def demand(self, question: Question) -> Answer:
        try:
            self.check(question)
        except Exception as error:
            raise failure_of(error, question.site) from error
        return self.federation.demand(question)
