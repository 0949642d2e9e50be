"""Grids of settings over one loaded model, each cell an ordinary lm-eval result file."""
