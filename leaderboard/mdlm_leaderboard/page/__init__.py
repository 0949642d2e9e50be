"""The leaderboard's page: one HTML file that needs no server and no network."""

from mdlm_leaderboard.page.write import write_page

__all__ = ["write_page"]
