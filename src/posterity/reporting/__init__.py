"""What people read: reports of one HTML page, summaries as data, and plots."""

from typing import TYPE_CHECKING

from posterity.runtime.lazy import exports

if TYPE_CHECKING:
    from posterity.reporting.page import Report as Report
    from posterity.reporting.page import report as report

__getattr__, __dir__ = exports(__name__, {"page": ("Report", "report")})
