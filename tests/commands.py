"""Commands in processes of their own, as users start them."""

import os

# No GPU, so that no command needs --device, as users leave it out.
ENVIRONMENT = os.environ | {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
# Code that takes lm-eval's thousands of tasks away, whose index takes seconds to build.
WITHOUT_ITS_TASKS = """
import functools, lm_eval.tasks
lm_eval.tasks.TaskManager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
"""
LM_EVAL = f"{WITHOUT_ITS_TASKS}\nfrom lm_eval.__main__ import cli_evaluate\ncli_evaluate()\n"
