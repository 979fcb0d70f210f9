"""Privacy of a federation's records: aggregation, accounted noise, and tests of membership."""
