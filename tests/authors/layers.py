"""What the stand-in's network imports from beside it."""


def bidirectional(config):
    """The config with bidirectional attention."""
    config.is_causal = False
    return config
