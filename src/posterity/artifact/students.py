"""Students of a posterior in files: their network and its weights, what outputs mean, units."""

import dataclasses
from typing import Any

import numpy as np

from posterity.artifact.architecture import Architecture
from posterity.artifact.registry import check_names, check_parameters, enrol, made
from posterity.distillation.heads import Head
from posterity.distillation.scaling import Scaling
from posterity.distillation.student import Student
from posterity.errors import ArtifactError
from posterity.families.layers import Layers

DESCRIBED = "a student as this release of posterity describes it"


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _student_fields(student: Student) -> dict[str, Any]:
    if not isinstance(student.network, Layers | Architecture):
        raise ArtifactError(
            found=f"a student whose network is a function of one's own, {student.network!r}",
            expected="a network that files can describe",
            fix="Distill into Layers, or into an Architecture under a registered name: "
            "register_architecture(name, lambda parameters: lambda x: apply(parameters, x)).",
        )
    found = _fields(student)
    if isinstance(student.network, Architecture):
        del found["parameters"]  # which the architecture holds
    return found


def _build(kind: type) -> Any:
    names = [field.name for field in dataclasses.fields(kind)]

    def build(fields: dict[str, Any]) -> Any:
        check_names(kind.__name__, fields, names)
        return made(kind, fields, DESCRIBED)

    return build


def _student(fields: dict[str, Any]) -> Student:
    names = {field.name for field in dataclasses.fields(Student)}
    network = fields.get("network")
    if isinstance(network, Architecture):
        fields = {**fields, "parameters": network.parameters}
    check_names("Student", fields, names)
    check_parameters(Student, {"parameters": fields["parameters"]})
    kinds = (network, Layers | Architecture), (fields["head"], Head), (fields["scaling"], Scaling)
    if not all(isinstance(value, kind) for value, kind in kinds):
        raise ArtifactError(
            found=f"a Student of {[type(value).__name__ for value, _ in kinds]}",
            expected="a network, a Head and a Scaling",
            fix="Read it with the release of posterity that wrote it.",
        )
    return made(Student, fields, DESCRIBED)


def _scaling(fields: dict[str, Any]) -> Scaling:
    arrays = {name: value for name, value in fields.items() if value is not None}
    check_parameters(Scaling, arrays)
    if any(not isinstance(value, np.ndarray) for value in arrays.values()):
        raise ArtifactError(
            found="a Scaling of other things than arrays", expected="arrays or nothing",
            fix="Read it with the release of posterity that wrote it.",
        )  # fmt: skip
    return _build(Scaling)(fields)


enrol(Head, _fields, _build(Head))
enrol(Scaling, _fields, _scaling)


def _check(fields: dict[str, Any]) -> None:
    if fields.get("network") is not None:  # an architecture that is only checked is not made
        _student(fields)


enrol(Student, _student_fields, _student, _check, whole=True)
