"""The command as a user types it: what it writes, says and leaves alone."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mdlm_leaderboard import build
from mdlm_leaderboard.__main__ import main
from mdlm_leaderboard.rows import Board
from tests.leaderboard_files import suite_file, write

RESULTS = Path(__file__).parents[1] / "leaderboard" / "results"
TABLES = ("LEADERBOARD.md", "leaderboard.csv", "leaderboard.json")


def run(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mdlm_leaderboard", *map(str, words)]
    path = os.pathsep.join([str(Path(__file__).parents[1] / "leaderboard"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "PYTHONPATH": path})


def test_builds_from_nested_folders_says_what_is_not_used_and_still_succeeds(tmp_path: Path) -> None:
    write(tmp_path / "results" / "some__model", results_1=suite_file(n_masks=1), results_2=suite_file(n_masks=200))
    write(tmp_path / "results", truncated='{"results": {', other={"accuracy": 0.5}, limited=suite_file(limit=5))
    done = run("build", "results/", "--output", "site/", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2 measured and 20 published rows in site/LEADERBOARD.md\n")
    said = done.stderr.splitlines()
    assert said[0].startswith("not used: 'other.json': is no result file of lm-eval")
    assert said[1].startswith("not used: 'truncated.json': is no whole JSON file")
    assert any("--limit 5 leaves out questions" in line for line in said)
    assert all((tmp_path / "site" / name).stat().st_size for name in TABLES)
    again = run("build", "results/", "--output", "site/", "--strict", cwd=tmp_path)
    assert again.returncode == 1


def test_what_a_file_brings_cannot_steer_the_terminal(tmp_path: Path) -> None:
    write(tmp_path / "results", results_1=suite_file(version="\x1b[31m2"), results_2=suite_file(version="\n1"))
    done = run("build", "results", "--output", "site", cwd=tmp_path)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 3
    assert all(line.isprintable() for line in done.stderr.splitlines())


def test_an_output_inside_the_results_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, results_1=suite_file())
    for _ in range(2):
        assert build.build(tmp_path, tmp_path / "site").refused == ()


def test_a_new_build_removes_only_what_the_last_one_wrote(tmp_path: Path) -> None:
    results, site = write(tmp_path / "results", one=suite_file()), tmp_path / "site"
    build.build(results, site)
    (site / "CNAME").write_text("example.org", encoding="utf-8")
    manifest = site / ".mdlm-leaderboard.json"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace("[\n", '[\n "old.svg",\n', 1), encoding="utf-8")
    (site / "old.svg").touch()
    build.build(results, site)
    assert (site / "CNAME").exists()
    assert not (site / "old.svg").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("results", "site")] == []


def test_an_unfinished_build_leaves_the_old_output_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, site = write(tmp_path / "results", one=suite_file()), tmp_path / "site"
    build.build(results, site)
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    write(results, two=suite_file(n_masks=100))

    def fail(board: Board) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "leaderboard_json", fail)
    with pytest.raises(KeyboardInterrupt):
        build.build(results, site)
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"results", "site"}


@pytest.mark.parametrize("manifest", ['["../mine.txt"]', '["/mine.txt"]', "[", "{}", "[1]"])
def test_a_manifest_that_is_not_ours_removes_nothing(tmp_path: Path, manifest: str) -> None:
    results, site = write(tmp_path / "results", one=suite_file()), tmp_path / "site"
    site.mkdir()
    (site / ".mdlm-leaderboard.json").write_text(manifest, encoding="utf-8")
    (tmp_path / "mine.txt").touch()
    build.build(results, site)
    assert (tmp_path / "mine.txt").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("empty", "--output", "site"), "mdlm-leaderboard: 'empty' holds no *.json file"),
        (("missing", "--output", "site"), "mdlm-leaderboard: 'missing' is no folder"),
        (("bad", "--output", "site"), "none of the 1 *.json files in 'bad' holds a usable score"),
        (("good", "--output", "file.txt"), "mdlm-leaderboard: --output 'file.txt' is a file"),
        (("good", "--output", "file.txt/site"), "mdlm-leaderboard: "),
    ],
)
def test_where_nothing_can_be_built_the_old_output_stays(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "bad", one="{")
    write(tmp_path / "good", one=suite_file())
    (tmp_path / "file.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "LEADERBOARD.md").write_text("old", encoding="utf-8")
    done = run("build", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert sentence in done.stderr.splitlines()[-1]
    assert ("not used: 'one.json': is no whole JSON file" in done.stderr) == (words[0] == "bad")
    assert "Traceback" not in done.stderr
    assert (tmp_path / "site" / "LEADERBOARD.md").read_text(encoding="utf-8") == "old"
    assert (tmp_path / "file.txt").read_text(encoding="utf-8") == "mine"


def test_validate_names_every_file_and_its_problems(tmp_path: Path) -> None:
    write(tmp_path, good=suite_file(), bad=suite_file(limit=10))
    done = run("validate", tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "no.json")
    assert done.returncode == 1
    assert done.stdout == f"{tmp_path / 'good.json'}: ok\n"
    assert done.stderr.splitlines() == [
        f"{str(tmp_path / 'bad.json')!r}: --limit 10 leaves out questions; a submission answers all",
        f"{str(tmp_path / 'no.json')!r}: cannot be read: No such file or directory",
    ]
    assert run("validate", tmp_path / "good.json").returncode == 0


def test_validate_takes_folders_as_build_does(tmp_path: Path) -> None:
    write(tmp_path / "model" / "a", cell=suite_file(n_masks=2))
    write(tmp_path / "model" / "b", cell=suite_file(n_masks=200, limit=10))
    (tmp_path / "model" / "b" / "samples_mdlm_context.jsonl").touch()
    (tmp_path / "empty").mkdir()
    done = run("validate", "model", "empty", "missing", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "model/a/cell.json: ok\n")
    assert done.stderr.splitlines() == [
        "'model/b/cell.json': --limit 10 leaves out questions; a submission answers all",
        "'empty': holds no *.json file; it must be a folder of lm-eval's result files",
        "'missing': cannot be read: No such file or directory",
    ]
    assert run("validate", "model/a", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    "folder", sorted(path for path in RESULTS.iterdir() if path.is_dir()), ids=lambda path: path.name
)
def test_the_folder_of_a_real_sweep_is_valid_where_it_answers_all_questions(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["validate", str(folder)])
    said, problems = (text.splitlines() for text in capsys.readouterr())
    assert len(said) + len(problems) == len(list(folder.rglob("*.json"))) > 0
    assert bool(problems) == (folder.name == "subsets") == code
    assert all("--limit" in problem for problem in problems)


@pytest.mark.parametrize("words", [(), ("build",), ("validate",)])
def test_help_shows_an_example(words: tuple[str, ...]) -> None:
    done = run(*words, "--help")
    assert done.returncode == 0
    assert "  mdlm-leaderboard" in done.stdout.split("example")[1]


def test_files_that_would_hang_or_drown_a_build_are_named_and_the_rest_is_built(tmp_path: Path) -> None:
    hash_in_a_list, hidden = suite_file(n_masks=2), suite_file(n_masks=10)
    hash_in_a_list["config"]["mdlm"]["task_suite"]["sha256"] = ["a"]
    results = write(tmp_path / "results", good=suite_file(), deep="[" * 100_000, hash=hash_in_a_list, odd='"\\ud800"')
    write(results / ".claimed", hidden=hidden)
    os.mkfifo(results / "fifo.json")
    (results / "zero.json").symlink_to("/dev/zero")
    (results / "folder.json").mkdir()
    surrogate = suite_file(n_masks=100, model_args={"pretrained": "half\ud800character"})
    (results / "surrogate.json").write_text(json.dumps(surrogate))
    done = run("build", "results", "--output", "site", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2 measured and 20 published rows in site/LEADERBOARD.md\n")
    said = "\n".join(line for line in done.stderr.splitlines() if line.startswith("not used"))
    assert "'fifo.json': is no regular file" in said
    assert "'zero.json': is no regular file" in said
    assert "'hash.json': records task_suite.sha256=['a']; it must be 64 hexadecimal digits" in said
    assert "'deep.json': is no whole JSON file" in said
    assert len(said.splitlines()) == 5


def test_nothing_secret_and_no_folder_of_the_machine_is_published(tmp_path: Path) -> None:
    arguments = {
        "pretrained": "/home/somebody/models/mine",
        "token": "hf_abcdefghijklmnopqrstuvwxyz",
        "proxies": {"https": "http://me:sesame@proxy"},
        "cache_dir": "/home/somebody/cache",
    }
    swept = suite_file(n_masks=2, model_args=arguments)
    pairs = ",".join(f"{name}={value}" for name, value in arguments.items())
    swept["config"]["mdlm_sweep"] = {
        "command": f"lm_eval --model mdlm --model_args {shlex.quote(pairs)}",
        "settings": {},
    }
    plain = suite_file(model_args=arguments, adapter="/home/somebody/out/adapter")
    named = suite_file(n_masks=5, model_args={"pretrained": arguments["token"]})
    text = suite_file(n_masks=9) | {"config": swept["config"]}
    write(tmp_path / "results", swept=swept, plain=plain, named=named, text=text)
    done = run("build", "results", "--output", "site", cwd=tmp_path)
    assert done.returncode == 0
    published = "".join((tmp_path / "site" / name).read_text() for name in TABLES)
    for secret in ("hf_abc", "sesame", "somebody", "/home"):
        assert secret not in published + done.stdout + done.stderr, secret
    assert "pretrained=mine" in published


def test_a_reader_that_had_enough_sees_no_traceback(tmp_path: Path) -> None:
    write(tmp_path, good=suite_file())
    command = f"{sys.executable} -m mdlm_leaderboard validate {' good.json' * 2000} | head -1"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "leaderboard")},
    )
    assert (done.stdout, done.stderr) == ("good.json: ok\n", "")


@pytest.mark.parametrize("output", ["", "/", "s3://bucket/site"])
def test_an_output_that_is_no_folder_on_a_disk(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["build", "results", "--output", output])
    assert ended.value.code == 2
    assert "argument --output: must be " in capsys.readouterr().err


def test_an_output_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "results", results_1=suite_file())
    (tmp_path / "file").touch()
    assert main(["build", str(tmp_path / "results"), "--output", str(tmp_path / "file" / "site")]) == 1
    assert f"--output {tmp_path / 'file' / 'site'} cannot be written: Not a directory\n" in capsys.readouterr().err
