"""`mdlm-leaderboard build`: result files in, tables, figures and page out."""

import gc
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from mdlm_leaderboard.assemble import assemble
from mdlm_leaderboard.collect import collect
from mdlm_leaderboard.exports import leaderboard_csv, leaderboard_json
from mdlm_leaderboard.published import published_rows
from mdlm_leaderboard.rows import Board, Refused
from mdlm_leaderboard.scores import FileScores, file_scores
from mdlm_leaderboard.tables import leaderboard_markdown
from mdlm_lm_eval.results.files import UnusableFile, read_json, scratch_folder, write_whole
from mdlm_lm_eval.results.result_file import find_result_files, read_result_file

# Names every file that the last build wrote, so that the next one removes what it does not write again, and no more.
_MANIFEST = ".mdlm-leaderboard.json"


class LeaderboardError(ValueError):
    """Why nothing can be built, in one sentence, and what of the files `refused` tells of them."""

    def __init__(self, message: str, refused: tuple[Refused, ...] = ()) -> None:
        super().__init__(message)
        self.refused = refused


def read_board(results: Path, *, leave_out: Path | None = None) -> Board:
    """All result files under `results` as a board. Raises LeaderboardError where there is no usable one."""
    if not results.is_dir():
        raise LeaderboardError(f"{str(results)!r} is no folder; it must be a folder of lm-eval's result files")
    paths = find_result_files(results, leave_out=leave_out)
    if not paths:
        raise LeaderboardError(f"{str(results)!r} holds no *.json file; it must be a folder of lm-eval's result files")
    with _no_garbage_collection():
        collected = collect(_read(results, path) for path in tqdm(paths, desc="Reading result files", disable=None))
    if not collected.estimates:
        message = f"none of the {len(paths)} *.json files in {str(results)!r} holds a usable score"
        raise LeaderboardError(message, collected.refused)
    return assemble(collected, published_rows())


def build(results: Path, output: Path, readme_figures: Path | None = None) -> Board:
    """Writes tables, figures and page of `results` into `output`, whose old content stays until all is made.

    Files of others in `output` are left alone. `readme_figures` is a folder for a copy of the headline's figure.
    Raises LeaderboardError where nothing can be built.
    """
    if output.exists() and not output.is_dir():
        raise LeaderboardError(f"--output {str(output)!r} is a file; it must be a folder, or not exist yet")
    board = read_board(results, leave_out=output.resolve())
    with scratch_folder(output.absolute()) as made:
        headline = _write_all(board, made)
        if readme_figures:
            for figure in headline:
                write_whole(readme_figures / figure.name, figure.read_text(encoding="utf-8"))
        _move(made, output)
    return board


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Parsed JSON holds no cycles to find, and looking for them takes as long as all the rest of reading."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _read(results: Path, path: Path) -> FileScores | Refused:
    name = path.relative_to(results).as_posix().encode("utf-8", "replace").decode("utf-8")  # no other can be written
    try:
        return file_scores(read_result_file(path, name))
    except UnusableFile as error:
        return Refused(name, str(error))


def _write_all(board: Board, folder: Path) -> list[Path]:
    """Writes everything and returns the files of the headline's figure."""
    # Imported here, as matplotlib and Jinja2 take longer to load than `--help` and `validate` take.
    from mdlm_leaderboard.figures import draw_figures, write_headline
    from mdlm_leaderboard.page import write_page

    (folder / "LEADERBOARD.md").write_text(leaderboard_markdown(board), encoding="utf-8")
    (folder / "leaderboard.csv").write_text(leaderboard_csv(board), encoding="utf-8")
    (folder / "leaderboard.json").write_text(leaderboard_json(board), encoding="utf-8")
    draw_figures(board, folder)
    write_page(board, folder)
    return write_headline(board, folder / "figures")


def _move(made: Path, output: Path) -> None:
    """Moves every made file to its place, then removes those that only the last build wrote."""
    new = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
    manifest = output / _MANIFEST
    old = _names_in(manifest)
    for name in new:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(made / name, output / name)
    for name in set(old) - set(new):
        (output / name).unlink(missing_ok=True)
    write_whole(manifest, json.dumps(new, indent=1) + "\n")


def _names_in(manifest: Path) -> list[str]:
    """The files that the last build wrote below its output; none where the manifest is not ours."""
    try:
        names = read_json(manifest)
    except UnusableFile:
        return []
    is_ours = isinstance(names, list) and all(isinstance(name, str) and ".." not in name for name in names)
    return [name for name in names if not name.startswith("/")] if is_ours else []
