"""Distillation: a posterior's predictive in one small network, learned online."""

from posterity.distillation.distill import Distillation as Distillation
from posterity.distillation.distill import Row as Row
from posterity.distillation.distill import distill as distill
from posterity.distillation.heads import Head as Head
from posterity.distillation.inputs import Box as Box
from posterity.distillation.inputs import Generated as Generated
from posterity.distillation.inputs import Images as Images
from posterity.distillation.inputs import Inputs as Inputs
from posterity.distillation.inputs import Mixup as Mixup
from posterity.distillation.inputs import Perturbed as Perturbed
from posterity.distillation.inputs import Pool as Pool
from posterity.distillation.sampling.kernels import SGHMC as SGHMC
from posterity.distillation.sampling.kernels import SGLD as SGLD
from posterity.distillation.sampling.langevin import Langevin as Langevin
from posterity.distillation.sampling.schedules import Polynomial as Polynomial
from posterity.distillation.scaling import Scaling as Scaling
from posterity.distillation.student import Student as Student
from posterity.distillation.teachers import Draws as Draws
from posterity.distillation.teachers import Independent as Independent
from posterity.distillation.teachers import Teacher as Teacher
