"""The leaderboard's figures, in the manner of the paper's figures 1, 2 and 4 to 10."""

from mdlm_leaderboard.figures.draw import draw_figures
from mdlm_leaderboard.figures.headline import write_headline
from mdlm_leaderboard.figures.plan import Figure, figures_of, model_order

__all__ = ["Figure", "draw_figures", "figures_of", "model_order", "write_headline"]
