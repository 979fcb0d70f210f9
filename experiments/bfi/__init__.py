"""BFI, the R package for Bayesian federated inference, beside posterity."""
