"""Scikit-learn estimators of regressions that are federated over the sites of their records.

``fit`` takes the name of each record's site as ``sites=``. Scikit-learn's metadata routing passes
it on through pipelines and searches (``set_fit_request(sites=True)``); without it all records
belong to one site. All records are in one process, so this keeps no data private: it computes the
result that sites would reach by exchanging posteriors, with a ledger that sites can leave. Import
this module explicitly; it needs scikit-learn. Tested with scikit-learn 1.7 and 1.9.
"""

from posterity.tabular.estimators.regressions import (
    FederatedLinearRegression as FederatedLinearRegression,
)
from posterity.tabular.estimators.regressions import (
    FederatedLogisticRegression as FederatedLogisticRegression,
)
from posterity.tabular.estimators.regressions import FederatedRegression as FederatedRegression
