"""Speed and memory of posterity, measured."""
