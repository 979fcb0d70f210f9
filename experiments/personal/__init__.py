"""Partial pooling: sites that differ, by as much as the data say."""
