"""Learners in files: their options and their ledger, and features as what makes them again."""

import dataclasses
import functools
from typing import Any

from posterity.artifact.architecture import Architecture
from posterity.artifact.registry import enrol_data
from posterity.errors import ArtifactError
from posterity.ledger import Ledger
from posterity.pursuit.learning.conjugate import ConjugateLearner
from posterity.pursuit.learning.features import Features, OwnFeatures, VectorFeatures


def _written(features: Any) -> dict[str, Any]:
    """The fields of features, and their digest, by which they are known when made again."""
    if isinstance(features, OwnFeatures) and not isinstance(features.function, Architecture):
        raise ArtifactError(
            found=f"features that are a function of one's own, {features.name!r}",
            expected="features that files can describe",
            fix="Register what makes them: register_architecture(name, lambda parameters: "
            "function), and pass OwnFeatures(Architecture(name, options, parameters), ...).",
        )
    fields = {field.name: getattr(features, field.name) for field in dataclasses.fields(features)}
    return fields | {"digest": features.digest}


def _read(kind: type[Features], fields: dict[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in fields.items() if name != "digest"}
    if kind(**own).digest != fields.get("digest"):
        raise ArtifactError(
            found=f"a {kind.__name__} with the digest of another",
            expected="the features whose sums the learner holds",
            fix="Read it with the release of posterity that wrote it.",
        )
    return own


for _features in (VectorFeatures, OwnFeatures):
    enrol_data(_features, write=_written, read=functools.partial(_read, _features))
enrol_data(
    ConjugateLearner,
    types={"features": Features | None, "ledger": Ledger | None},
    check=lambda fields: None,  # a ledger that is only checked comes without its entries
    whole=True,
)
