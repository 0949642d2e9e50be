"""The types of the parts of result files and files of samples that are read. Anybody may have written these files.

Any other key may be there and have any value, and so may keys that are only shown. Numbers are bounded, so that sums,
dates and figures of them are finite.
"""

from typing import Annotated, Any, NotRequired, Required

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from mdlm_lm_eval.results.files import UnusableFile

# Of the types that files are checked by; pydantic also applies it to the types inside them.
_AS_IT_IS = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

LARGEST = 1e100  # the largest score: figures compute its square
Count = Annotated[int, Field(ge=0, le=2**53)]
Amount = Annotated[float, Field(ge=0, le=1e18)]
Bounds = Annotated[list[Count], Field(min_length=2, max_length=2)]
Scalar = str | int | float | bool | None


class _Checked(TypedDict):
    """A type that files are checked by."""

    __pydantic_config__ = _AS_IT_IS  # type: ignore[misc]


class Ranges(TypedDict, total=False):
    """The smallest and the largest effective value of a task."""

    masks: Bounds
    asked_masks: Bounds
    masks_in_block: Bounds
    block_length: Bounds
    returned_tokens: Bounds
    steps: Bounds


class ExactAnswer(TypedDict, total=False):
    """An audited answer; `exact` is missing if both ways of decoding gave the same answer."""

    doc_id: Required[int | None]
    exact: str | None


class Audit(TypedDict, total=False):
    """The findings of `cache_audit` or of a server's `audit`."""

    requests: Count
    same_strings: Count
    exact_answers: list[ExactAnswer]


class FirstTokens(TypedDict, total=False):
    """The likeliest first tokens: one letter of `SHARES` per question, the questions' sets, and the mean entropy."""

    letters: Required[Annotated[str, Field(pattern="^[RWLETOeto]*$")]]
    entropy: Required[Amount]
    sets: str | None


class RecordOfTask(Ranges, total=False):
    """The record that `--model mdlm` makes of one task."""

    requests: Count
    truncated_prompts: Count
    drawn: Count  # older files do not say
    longer_continuations: Count
    short_answers: Count
    cost: dict[str, Amount]
    cache: str | None
    audit: Audit | None
    endings: dict[str, Count]
    first_token: FirstTokens | None


class Options(TypedDict, total=False):
    """The decoding or likelihood options in effect that are used for more than showing them."""

    cache: str | None
    mask_ratio: float | None
    n_fillers: Count | None
    unmasking: str | None


class OptionsOfTasks(TypedDict):
    """Options in effect and the tasks that were run with them."""

    options: Options
    tasks: list[str]


class Server(TypedDict, total=False):
    """The engine that decoded."""

    engine: Required[str]
    version: Required[str]
    said: Required[dict[str, Any]]
    stated: Required[dict[str, Any]]
    unknown: Required[list[str]]
    concurrency: Required[Count]
    tokens_per_second: Amount | None
    requests_per_second: Amount | None


class NoiseFloor(TypedDict, total=False):
    """The share of answers that flip when something changes that should not matter, as `mdlm-check` measured it."""

    change: dict[str, Any]
    share: Required[Amount]
    interval: Required[Annotated[list[Amount], Field(min_length=2, max_length=2)]]


class Check(TypedDict, total=False):
    """The record of `mdlm-check` that a run names; `stale` are the facts in which the run differs from the check."""

    verdict: Required[str | None]
    stale: Required[list[str]]
    noise_floor: NoiseFloor | None


class CheckRecord(_Checked):
    """The file of `mdlm-check` that a run may name; `applies_to` are the facts that it holds for."""

    applies_to: dict[str, Any]
    verdict: str
    noise_floor: NotRequired[dict[str, Any] | None]


class Plugin(TypedDict):
    """A file of others that was registered."""

    name: str
    sha256: str | None
    registers: list[str]


class OfModel(TypedDict, total=False):
    """The record that `--model mdlm` and `--model mdlm-server` make of a run."""

    pretrained: Required[str | None]
    adapter: Required[str | None]
    adapter_recipe: str | None  # a digest of the adapter's recipe without its seed
    adapter_base: str | None  # the model that the adapter was trained on, if it is another one
    settings: Required[list[OptionsOfTasks]]
    tasks: Required[dict[str, RecordOfTask]]
    arguments: dict[str, Any]  # the model arguments under our names; older files have those of `config` alone
    chat_template_sha: str | None
    task_suite: dict[str, str | None] | None  # the few-shot suite's version and hash; empty for other tasks
    server: Server | None
    family: str | None
    plugins: list[Plugin]
    check: Check | None
    explicit_options: list[str]
    preset_mismatches: list[str]
    processes: Count


class SettingsOfCell(TypedDict, total=False):
    """What decided the scores of a sweep's cell."""

    model_args: dict[str, Any] | None
    metadata: dict[str, Any] | None
    task_suite: dict[str, str | None] | None
    weights: str | None
    adapter_weights: str | None


class OfSweep(TypedDict, total=False):
    """The record that `mdlm-sweep` makes of a cell."""

    command: str | None
    settings: SettingsOfCell | None


class Config(TypedDict, total=False):
    """lm-eval's own settings."""

    model: Required[str]
    model_args: str | dict[str, Any] | None
    model_dtype: str | None
    model_num_parameters: Annotated[int, Field(le=2**53)] | None
    gen_kwargs: str | dict[str, Any] | None
    mdlm: OfModel | None
    mdlm_sweep: OfSweep | None
    batch_size: Scalar
    limit: Amount | None


class Metadata(TypedDict, total=False):
    """The settings of the few-shot suite's examples."""

    fewshot_relevant: Count
    fewshot_distractors: Count
    fewshot_seed: Count
    fewshot_template: Count


class ConfigOfTask(TypedDict, total=False):
    """A task's own settings."""

    repeats: Count
    generation_kwargs: dict[str, Any] | None
    metadata: Metadata | None


class Questions(TypedDict):
    """The number of questions that a task has, and of those that were asked."""

    original: Count
    effective: Count


class Recorded(BaseModel):
    """A result file of lm-eval."""

    model_config = _AS_IT_IS
    config: Config
    results: dict[str, dict[str, Any]]
    configs: dict[str, ConfigOfTask]
    versions: dict[str, Scalar]
    shots: dict[str, Count] = Field(alias="n-shot")
    questions: dict[str, Questions] = Field(alias="n-samples")
    groups: dict[str, dict[str, Any]] = {}
    group_subtasks: dict[str, list[str]] = {}
    higher_is_better: dict[str, dict[str, bool | None]] = {}
    chat_template_sha: str | None = None
    fewshot_as_multiturn: bool | None = None
    system_instruction: str | None = None
    date: Annotated[float, Field(ge=0, lt=253402300800)] | None = None  # seconds, up to the year 9999


class RowOfAnalysis(TypedDict, total=False):
    """A number of an analysis."""

    task: Required[str]
    question: Count
    reordering: Count
    place: Count
    group: str
    predicted: str
    answer: str
    questions: Count
    n_masks: Count
    gradient: Amount
    confidence: Amount
    entropy: Amount


class OfAnalysis(TypedDict, total=False):
    """The part of an analysis' `config` that a sweep writes."""

    mdlm_sweep: OfSweep | None


class Analysis(_Checked, total=False):
    """A file of `mdlm-attribution`. `summary` is empty before the end."""

    settings: Required[dict[str, Any]]
    rows: Required[list[RowOfAnalysis]]
    summary: Required[dict[str, Any]]
    config: OfAnalysis | None


class CellOfPlan(TypedDict):
    """What a plan asks in one cell."""

    questions: Count


class OfPlan(_Checked):
    """A plan of the paper's experiments (`plan.json`)."""

    cells: dict[str, CellOfPlan]
    declared: dict[str, Any]
    left_out: dict[str, str]


class Sample(_Checked):
    """One line of lm-eval's `--log_samples`. Every metric is a further key."""

    doc_id: int
    doc_hash: str
    filter: str
    filtered_resps: NotRequired[list[Any]]
    metrics: list[str]


class Answered(Sample, total=False):
    """The same with the requests and the answers."""

    target: Any
    prompt_hash: str
    arguments: Required[dict[str, dict[str, Any]]]
    resps: Required[list[list[Any]]]


RECORDED, CHECK_RECORD = TypeAdapter(Recorded), TypeAdapter(CheckRecord)
ANALYSIS, PLAN, LOOKS = TypeAdapter(Analysis), TypeAdapter(OfPlan), TypeAdapter(list[str])
SAMPLES, ANSWERED = TypeAdapter(list[Sample]), TypeAdapter(list[Answered])


def check_types(content: Any, types: TypeAdapter[Any]) -> None:
    """Raises UnusableFile, which names the first place that has another type."""
    try:
        types.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UnusableFile(f"differs from what this version reads ({place}: {first['msg']})") from error
