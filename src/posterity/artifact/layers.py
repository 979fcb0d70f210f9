"""Layers of networks in files."""

import dataclasses
from typing import Any

from posterity.artifact.registry import check_names, enrol, made
from posterity.families.layers import Conv, Dense, Layers


def _fields(value: Any) -> dict[str, Any]:
    pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
    return {name: list(held) if isinstance(held, tuple) else held for name, held in pairs}


def _enrol(kind: type) -> None:
    names = [field.name for field in dataclasses.fields(kind)]

    def build(fields: dict[str, Any]) -> Any:
        check_names(kind.__name__, fields, names)
        values = {n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()}
        return made(kind, values, "layers as this release of posterity describes them")

    enrol(kind, _fields, build)


for _kind in (Dense, Conv, Layers):
    _enrol(_kind)
