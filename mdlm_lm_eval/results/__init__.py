"""What a result holds: writing it, reading it back, the names of models in it, and the statistics of its scores.

Neither torch nor transformers is imported here, so that commands which only read results start at once.
"""
