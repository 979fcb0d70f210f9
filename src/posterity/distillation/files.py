"""Students of a posterior in files: their network and its weights, what outputs mean, units."""

import dataclasses
from typing import Any

import numpy as np

from posterity.artifact.architecture import Architecture
from posterity.artifact.registry import CODECS, enrol_data
from posterity.distillation.domain import Domain
from posterity.distillation.heads import Head
from posterity.distillation.scaling import Scaling
from posterity.distillation.student import Student
from posterity.errors import ArtifactError
from posterity.families.layers import Layers

ARRAYS = [field.name for field in dataclasses.fields(Scaling)]


def _written(student: Student) -> dict[str, Any]:
    if not isinstance(student.network, Layers | Architecture):
        raise ArtifactError(
            found=f"a student whose network is a function of one's own, {student.network!r}",
            expected="a network that files can describe",
            fix="Distill into Layers, or into an Architecture under a registered name: "
            "register_architecture(name, lambda parameters: lambda x: apply(parameters, x)).",
        )
    fields = {f.name: getattr(student, f.name) for f in dataclasses.fields(student)}
    if isinstance(student.network, Architecture):
        del fields["parameters"]  # which the architecture holds
    return fields


def _read(fields: dict[str, Any]) -> dict[str, Any]:
    network = fields.get("network")
    own = {"parameters": network.parameters} if isinstance(network, Architecture) else {}
    return {**fields, **own}


def _checked(fields: dict[str, Any]) -> None:
    if fields.get("network") is not None:  # an architecture that is only checked is not made
        CODECS["Student"].build(fields)


enrol_data(Head)
enrol_data(Scaling, types=dict.fromkeys(ARRAYS, np.ndarray | None), arrays=ARRAYS)
enrol_data(Domain, arrays=["low", "high", "mean", "directions"])
enrol_data(
    Student,
    types={
        "network": Layers | Architecture,
        "head": Head,
        "scaling": Scaling,
        "domain": Domain | None,
    },
    arrays=["parameters"],
    write=_written,
    read=_read,
    check=_checked,
    whole=True,
)
