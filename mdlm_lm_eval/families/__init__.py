# ruff: noqa: F401 - what this room offers to others
"""Model families, one file each, and which family a config belongs to.

A new family is one file in this folder, or outside the package, that calls `register(name=..., family=Family(...))`.
"""

from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.families.registry import all_families, family_of
from mdlm_lm_eval.model.attention import AttentionPattern
