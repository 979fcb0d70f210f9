"""Distillation: a posterior's predictive in one small network, learned online."""

from posterity.distillation.distill import Distillation, Row, distill
from posterity.distillation.heads import Head
from posterity.distillation.inputs import (
    Adversarial,
    Box,
    Generated,
    Images,
    Inputs,
    Mixup,
    Perturbed,
    Pool,
)
from posterity.distillation.sampling.kernels import SGHMC, SGLD, PreconditionedSGLD
from posterity.distillation.sampling.langevin import Langevin
from posterity.distillation.sampling.schedules import Cyclical, Halving, Polynomial
from posterity.distillation.scaling import Scaling
from posterity.distillation.student import Student
from posterity.distillation.teachers import Draws, Independent, Teacher

__all__ = [
    "SGHMC",
    "SGLD",
    "Adversarial",
    "Box",
    "Cyclical",
    "Distillation",
    "Draws",
    "Generated",
    "Halving",
    "Head",
    "Images",
    "Independent",
    "Inputs",
    "Langevin",
    "Mixup",
    "Perturbed",
    "Polynomial",
    "Pool",
    "PreconditionedSGLD",
    "Row",
    "Scaling",
    "Student",
    "Teacher",
    "distill",
]
