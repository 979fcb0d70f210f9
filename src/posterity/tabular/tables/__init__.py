"""Tables of means and standard deviations, or a covariance, as files, and back."""

from posterity.tabular.tables.files import read, read_sites, write
from posterity.tabular.tables.laws import from_table, to_ledger, to_table

__all__ = ["from_table", "read", "read_sites", "to_ledger", "to_table", "write"]
