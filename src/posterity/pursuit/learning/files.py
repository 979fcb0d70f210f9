"""Learners in files: their options and their ledger, and features as what makes them again."""

import dataclasses
from typing import Any

from posterity.artifact.architecture import Architecture
from posterity.artifact.registry import check_names, enrol, made
from posterity.errors import ArtifactError
from posterity.ledger import Ledger
from posterity.pursuit.learning.conjugate import ConjugateLearner
from posterity.pursuit.learning.features import (
    Features,
    OwnFeatures,
    VectorFeatures,
)

RELEASE = "Read it with the release of posterity that wrote it."


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _feature_fields(features: Any) -> dict[str, Any]:
    found = _fields(features)
    if isinstance(features, OwnFeatures) and not isinstance(features.function, Architecture):
        raise ArtifactError(
            found=f"features that are a function of one's own, {features.name!r}",
            expected="features that files can describe",
            fix="Register what makes them: register_architecture(name, lambda parameters: "
            "function), and pass OwnFeatures(Architecture(name, options, parameters), ...).",
        )
    return found | {"digest": features.digest}


def _build(kind: type) -> Any:
    names = [field.name for field in dataclasses.fields(kind)]

    def build(fields: dict[str, Any]) -> Any:
        fields = dict(fields)
        digest = fields.pop("digest", None)
        check_names(kind.__name__, fields, names)
        value = made(kind, fields, "what this release of posterity describes")
        if issubclass(kind, Features) and value.digest != digest:
            raise ArtifactError(
                found=f"a {kind.__name__} with the digest of another",
                expected="the features whose sums the learner holds",
                fix=RELEASE,
            )
        return value

    return build


def _checked(fields: dict[str, Any]) -> None:
    """What can be known of a learner before its ledger is put together."""
    kinds = {"features": Features, "ledger": Ledger}
    for name, kind in kinds.items():
        value = fields.get(name)
        if value is not None and not isinstance(value, kind):
            raise ArtifactError(
                found=f"{name} that are a {type(value).__name__}", expected=kind.__name__,
                fix=RELEASE,
            )  # fmt: skip


def _learner(fields: dict[str, Any]) -> ConjugateLearner:
    _checked(fields)
    return _build(ConjugateLearner)(fields)


def _no_check(fields: dict[str, Any]) -> None:
    """A ledger that is only checked comes without its entries; see :mod:`.ledgers`."""
    del fields


for _kind in (VectorFeatures, OwnFeatures):
    enrol(_kind, _feature_fields, _build(_kind))
enrol(ConjugateLearner, _fields, _learner, _no_check, whole=True)
