"""Layers of networks in files."""

from posterity.artifact.registry import enrol_data
from posterity.families.layers import Conv, Dense, Layers

for _kind in (Dense, Conv, Layers):
    enrol_data(_kind)
