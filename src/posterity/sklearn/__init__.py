"""Estimators of scikit-learn over the verbs: regressions that federate, mixtures that fuse.

``fit`` takes the site of each record as ``sites=``, which scikit-learn's metadata routing passes on
through pipelines and searches (``set_fit_request(sites=True)``); without it all records are of one
site. In one process nothing is kept apart: what these estimators give is what sites would get that
exchange posteriors, with the ledger from which one of them can leave. This module is imported only
where it is asked for, with scikit-learn. Tested with scikit-learn 1.7 and 1.9.
"""

from posterity.sklearn.mixtures import FusedGaussianMixture as FusedGaussianMixture
from posterity.sklearn.regressions import FederatedLinearRegression as FederatedLinearRegression
from posterity.sklearn.regressions import FederatedLogisticRegression as FederatedLogisticRegression
from posterity.sklearn.regressions import FederatedPoissonRegression as FederatedPoissonRegression
from posterity.sklearn.regressions import FederatedRegression as FederatedRegression
