"""Distillation: one small network that predicts as a posterior does, learned online."""
