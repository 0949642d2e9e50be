"""`python -m mdlm_lm_eval run --model mdlm ...`: lm-eval's own command where the start-up hook is not wanted."""

from mdlm_lm_eval import plugin

if __name__ == "__main__":
    plugin.arm()
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
