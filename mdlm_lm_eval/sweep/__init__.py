"""Evaluates one loaded model under a grid of settings. Each cell becomes an ordinary lm-eval result file."""
