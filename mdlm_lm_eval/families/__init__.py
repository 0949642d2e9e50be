# ruff: noqa: F401 - what this room offers to others
"""Model families, one file each, and which family a config belongs to.

A new family is one file in this folder, or in a package of its own, that calls `register_family(Family(...))`.
"""

from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.families.registry import all_families, family_of, register_family
from mdlm_lm_eval.model.attention import AttentionPattern
