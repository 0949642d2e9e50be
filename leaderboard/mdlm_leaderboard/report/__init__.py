"""The report of the paper's experiments on one or several models: verdicts, figures and tables."""
