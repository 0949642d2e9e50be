"""Where the question stands among the examples of a few-shot task (arXiv 2606.19349): before, between or after them."""

from typing import Any

from mdlm_lm_eval.options import OptionError, must_be
from mdlm_lm_eval.tasks.prompts import split_at_question

PLACES = {"prefix": "left", "middle": "middle", "trailing": "right"}
_LENGTH = 256  # of an answer, where a task says nothing


def check_place(where: object) -> None:
    """Raises OptionError for another place."""
    if where not in PLACES:
        raise must_be("query_position", f"one of {', '.join(PLACES)}", where)


def place_query(task: Any, where: str) -> None:
    """Lets the question of a generation task stand elsewhere, with the slot of its answer in place.

    lm-eval builds the examples, the question and its turns; `trailing` changes no prompt. Raises OptionError for
    another place or type of task.
    """
    check_place(where)
    if task.OUTPUT_TYPE != "generate_until":
        raise OptionError(f"query_position={where} needs a task that generates, and {task.config.task} does not")
    task.config.metadata = {**(task.config.metadata or {}), "query_position": where}
    if where == "trailing":
        return
    task.config.generation_kwargs["infill"] = True
    if hasattr(task, "prefixes"):  # of the few-shot suite, which builds its prompts by itself
        task.is_fixed_slot = True
        both = {name: [*before, *after] for name, (before, after) in task.prefixes.items()}
        task.prefixes = {name: split_at_question(examples, PLACES[where]) for name, examples in both.items()}
        return
    name = "build_qa_turn" if hasattr(task, "build_qa_turn") else "_build_qa_turn"  # since lm-eval 0.5
    turn, shown = getattr(task, name), []

    def placed(**parts: Any) -> list[Any]:
        """Keeps the turns of each example, and gives all in their order with those of the question."""
        if parts.get("a") is not None:
            shown.append(turn(**parts))
            return []
        parts |= {"tgt_delim": task.config.target_delimiter, "few_delim": task.config.fewshot_delimiter}
        parts["a"] = f"<|mask:{task.config.generation_kwargs.get('max_gen_toks', _LENGTH)}|>"
        before, after = split_at_question(shown, PLACES[where])
        messages = [message for turns in (*before, turn(**parts), *after) for message in turns]
        shown.clear()
        last = messages[-1]
        return [*messages[:-1], type(last)(last.role, last.content)]  # nothing comes after it

    setattr(task, name, placed)
