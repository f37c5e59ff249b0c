"""Evaluation: accuracy, calibration, robustness, few-shot, k-NN, linear probe, VTAB."""
