"""Tables, figures and pages from lm-eval result files."""
