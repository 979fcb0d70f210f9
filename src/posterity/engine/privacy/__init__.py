"""Privacy of a federation's records: noise, and its accounting."""
