"""What `dsrun render-slurm` refuses before sbatch would, or would not: with the option's name, and how to mend it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from dsrun.cli.options import declared_in
from dsrun.cli.render.rendered_job import find_job, from_run_file
from dsrun.cli.slurm.script import SLURM
from dsrun.errors import UsageError
from dsrun.launch.program import any_program, train_program
from dsrun.options import OptionValue
from dsrun.slurm.render.job_script import _compiled, context, render_script, template_text
from dsrun.slurm.render.notation import parse_gpus
from dsrun.slurm.render.site import ClusterSite, functions_file, missing_here
from dsrun.slurm.render.spec import make_spec
from tests.unit.slurm.stand_ins import spec_of

command = declared_in("slurm/render.toml")

SITE = ClusterSite()


def made(name: str, *words: str, **others: str):
    """The spec of one option as somebody wrote it."""
    given = [OptionValue(name=name, values=words, where=f"--{name}")]
    given += [OptionValue(name=key, values=(value,), where=f"--{key}") for key, value in others.items()]
    return make_spec(given)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("nodes", ["2", "+2"], ["1_000", "١", " 3 ", "1\n", "99999999999", "", "9" * 5000]),
        ("nproc", ["8"], ["9" * 20, "1_0"]),
        ("time", ["20:00:00", "99999:99:99", "5:90"], ["١٢", "９９", "99999999999999", "4294967295"]),
        ("mem", ["200G", "0"], ["٣", "1.5T"]),
        (
            "gpus_per_node",
            ["4", "a100:4", "3g.20gb:2", "nvidia_a100_1g.10gb:1", "gpu:a100:4", "a100x4", "4*mine"],
            ["gpu:4", "١", "4:4", "99999999999"],
        ),
        (
            "gres",
            ["gpu", "gpu:4", "gpu:a100:4,nvme:1", "gpu:3g.20gb:2", "gres:gpu:2", "none", "lustre:1T"],
            ["gpu:", "gpu:-1", ",,", "a b", "(null)", "gpu:4(S:0-1)", "gpu=1", "gpu:ü:2", "gpu,"],
        ),
        (
            "array",
            ["0-9", "1,3,7", "0-99%4", "0-9:2", "[0-3]", "0-9%4,20"],
            ["9-0", "a-b", "-1", "0-9:0", "%4", "1-", "1,2,", "0-9 %4", "2026-01-01", "$(id)"],
        ),
        (
            "dependency",
            ["afterok:1", "afterany:1:2", "singleton", "afterok:1,afterany:2", "after:1+5?aftercorr:12_3"],
            ["afterok", "afterok:", "afterok:x", "foo:1", "x", "1234"],
        ),
        ("mail_type", ["END", "end,fail", "TIME_LIMIT_80", "NONE"], ["FOO", "END;FAIL", "END,"]),
        (
            "nodelist",
            ["gpu[01-02]", "a,b", "./hosts"],
            ["gpu[01-02", "gpu[2-1]", "gpu[x]", "[", "$(id)", "-x"],
        ),
        ("exclude", ["node7"], ["node[7"]),
        ("module", ["cuda/13.0"], ["", "-x"]),
        ("conda", ["base"], ["", "-x"]),
        ("venv", ["env"], [""]),
        ("stage", ["env.tar"], [""]),
        (
            "setup_file",
            ["env.sh", "my env.sh"],
            ["", "conda activate x", "module load a b", ". env/bin/activate", "source x.sh"],
        ),
        ("container_image", ["x.sqsh"], ["", "-x"]),
        ("apptainer", ["x.sif"], ["", "-x"]),
        ("local_dir", ["/local"], ["", "rel", "$TMPDIR"]),
        ("interface", ["ib0", "^docker0,lo", "=ib0"], ["", "-x", "ü"]),
        (
            "env",
            ["A=1", "A", "A=", "SLURM_JOB_ID", "TOKENIZERS_PARALLELISM=true", "MAX_TOKENS=9"],
            ["HF_TOKEN=x", "MYTOKEN=x", "HF_TOKEN_X=x", "UID=3", "SLURM_JOB_ID=3", "DSRUN_OUTPUT=/x", ""],
        ),
        (
            "sbatch",
            ["switches=1", "hold"],
            ["n=8", "c=2", "wait", "parsable", "test-only", "export-file=x", ""],
        ),
    ],
)
def test_sbatch_option_values_validated(name, good, bad):
    """Only values that SLURM and the shell can read are accepted."""
    for word in good:
        made(name, word)
    for word in bad:
        with pytest.raises(UsageError) as refused:
            made(name, word)
        assert f"--{name}" in str(refused.value)


def test_env_option_refuses_variables_of_script():
    """A variable of the script's own cannot be passed with --env."""
    text = template_text() + "".join(each.read_text() for each in functions_file().parent.glob("*.bash"))
    own = set(re.findall(r"^\s*(?:for )?([a-z_]+)(?:=| in )", text, re.MULTILINE))
    own -= set(re.findall(r"(?:^| )([a-z_]+)(?=[= ]|$)", " ".join(re.findall(r"^ +local (.*)", text, re.MULTILINE))))
    assert {"job", "endpoint", "on_node", "nproc"} <= own
    for name in own | {"PWD"}:
        with pytest.raises(UsageError, match="set by"):
            made("env", f"{name}=1")


@pytest.mark.parametrize("mount", ["", "a:", ":b", "/a::ro"])
def test_container_mount_needs_both_folders(mount):
    """A mount names both of its folders."""
    made("container_mounts", "/a:/b:ro", apptainer="x.sif")
    with pytest.raises(UsageError, match="container_mounts"):
        made("container_mounts", mount, apptainer="x.sif")


def test_mig_slice_type_begins_with_digit():
    """The type of a MIG slice begins with a digit."""
    assert parse_gpus("3g.20gb:2") == ("3g.20gb", 2)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--model", "t5"], "a program comes first"),
        (["--", "x"], "a program comes first"),
        (["torchrun", "x.py"], "one worker per GPU"),
        (["/opt/bin/deepspeed", "x.py"], "one worker per GPU"),
        (["python", "-m", "torch.distributed.run", "x.py"], "one worker per GPU"),
        (["python", "-m"], "no module"),
    ],
)
def test_launcher_or_empty_program_refused(words, why):
    """Programs that would start workers of their own, or nothing, are refused."""
    with pytest.raises(UsageError, match=why):
        any_program(words)


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["python", "x.py"], "x.py"),
        (["./x"], "./x"),
        (["x"], None),
        (["python", "-m", "x"], None),
        (["python", "-c", "x"], None),
    ],
)
def test_script_file_of_program(words, file):
    assert any_program(words).file == file


def test_setup_file_and_venv_not_searched_on_path():
    """Sourced files are not looked up on PATH."""
    blanks = context(spec_of(setup_file=["env.sh", "/etc/x", "-a/b"], venv="env"), any_program(["x"]), SITE)
    assert (blanks["setup_files"], blanks["venv"]) == (["./env.sh", "/etc/x", "./-a/b"], "./env")


def test_training_env_defaults_yield_to_user():
    """Defaults for training give way to what the user has set."""
    script = render_script(spec_of(), train_program([]), SITE)
    assert "[ -v PYTORCH_CUDA_ALLOC_CONF ] || export PYTORCH_CUDA_ALLOC_CONF=" in script
    script = render_script(spec_of(env=["TOKENIZERS_PARALLELISM=true"]), train_program([]), SITE)
    assert "export TOKENIZERS_PARALLELISM=true" in script
    assert "TOKENIZERS_PARALLELISM=false" not in script


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("a\nb\n{{ nope }}", "line 3: 'nope' is undefined"),
        ("a\n{{ name + 1 }}", "line 2 cannot be filled"),
        ("{{ 1 / 0 }}", "cannot be filled"),
        ("{{ name | q(3) }}", "cannot be filled"),
        ("{% include 'x' %}", "cannot be filled"),
        ("a\n{% if %}", "line 2"),
    ],
)
def test_template_error_is_one_line_with_place(template, says):
    """An error in a template is reported in one line, with its place."""
    with pytest.raises(UsageError, match="the template") as refused:
        render_script(spec_of(), any_program(["x"]), SITE, template)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        ["-o", ""],
        ["--template", ""],
        ["--config", ""],
        ["--test-only", "--submit"],
        ["--test-only", "--follow"],
    ],
)
def test_render_slurm_contradictory_output_options_refused(words):
    """Empty file names and contradictory ways of delivery are refused."""
    with pytest.raises(UsageError):
        command.main([*words, "--", "true"], standalone_mode=False)


def test_clean_env_exports_home_and_user():
    """A job with a clean environment still knows its user."""
    spec = spec_of(clean_env="true", env=["HF_TOKEN", "USER", "A=1"])
    assert "#SBATCH --export=HOME,USER,LOGNAME,SHELL,HF_TOKEN\n" in render_script(spec, any_program(["x"]), SITE)


def test_dsrun_train_after_dashes_is_training(tmp_path):
    """`dsrun train` after the dashes is recognized as a training."""
    words = ["train", "--model", "demo-t5"]
    assert find_job(["dsrun", *words], None, tmp_path, SLURM).program == find_job(words, None, tmp_path, SLURM).program


def test_run_file_with_slurm_section_only_names_no_program(tmp_path):
    """A run file with nothing but a slurm section names nothing to run."""
    (tmp_path / "run.yaml").write_text("slurm: {partition: gpu}\n")
    with pytest.raises(UsageError, match=r"run\.yaml does not name a model to train"):
        find_job((), None, tmp_path, SLURM)
    assert find_job(["true"], None, tmp_path, SLURM).config == "run.yaml"
    (tmp_path / "run.yaml").write_text("train: {model_name_or_path: demo-t5}\n")
    assert find_job((), None, tmp_path, SLURM).program.trains


def test_run_file_nested_too_deeply_refused_in_one_line(tmp_path):
    """A run file that is nested too deeply is refused in one line."""
    (tmp_path / "run.yaml").write_text("slurm: " + "[" * 5000)
    with pytest.raises(UsageError, match="too deeply"):
        from_run_file("run.yaml", tmp_path, SLURM)


def test_run_file_max_restarts_not_reported_as_ignored(tmp_path, capsys):
    """max_restarts of a run file is not reported as ignored."""
    (tmp_path / "run.yaml").write_text("train: {model: demo-t5}\nlaunch: {max_restarts: 2}\n")
    find_job((), None, tmp_path, SLURM)
    assert "max_restarts" not in capsys.readouterr().err


def found_missing(folder, program, *, on_cluster=False, **options):
    """Level, place and message of what a machine with this folder lacks."""
    found = missing_here(spec_of(**options), program, folder, {}, on_cluster=on_cluster)
    return [(each.level, each.where, each.message) for each in found]


def test_missing_script_reported_unless_in_container(tmp_path):
    """A missing script is mentioned, unless a container image may have it."""
    program = any_program(["python", "x.py"])
    ((level, where, message),) = found_missing(tmp_path, program)
    assert (level, where) == ("info", "program")
    assert "x.py is not on this machine" in message
    assert found_missing(tmp_path, program, container_image="docker://x") == []
    (tmp_path / "x.py").touch()
    assert found_missing(tmp_path, program) == []


def test_missing_relative_path_is_an_error_on_the_cluster(tmp_path):
    """An absolute path may be on the nodes' own disks; a relative one is below the folder that the job runs in."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x.py").touch()
    program = any_program(["python", "x.py"])
    found = found_missing(tmp_path, program, on_cluster=True, setup_file=["env.sh", "/no/env.sh"], venv="env")
    assert [(level, where) for level, where, _ in found] == [
        ("error", ""), ("error", "--setup-file"), ("info", "--setup-file"), ("error", "--venv"),
    ]  # fmt: skip
    assert found_missing(tmp_path, program, on_cluster=True, sbatch=["chdir=below"]) == []


def test_missing_file_name_with_line_break_on_one_line(tmp_path):
    """A file name with a line break is reported on one line."""
    ((_, _, message),) = found_missing(tmp_path, any_program(["x"]), setup_file=["a\nb"])
    assert "\n" not in message


def test_render_slurm_to_closed_stdout_without_traceback(tmp_path):
    """A closed stdout causes no traceback."""
    words = [sys.executable, "-m", "dsrun", "render-slurm", "--", "true"]
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" >&-', "x", *words],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_shipped_template_kept_compiled_renders_the_same(monkeypatch):
    """As text it is compiled anew, with the same guarantees: kept code is strict about names, and quotes values."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    spec, program = spec_of(nodes="2", conda="it's; a name"), any_program(["./run", "$(id)"])
    for _ in range(2):
        _compiled.cache_clear()
        assert render_script(spec, program, SITE) == render_script(spec, program, SITE, template_text())
    assert "conda activate 'it'\"'\"'s; a name'" in render_script(spec, program, SITE)
    monkeypatch.setattr("dsrun.slurm.render.job_script.context", lambda *_: {"directives": []})
    with pytest.raises(UsageError, match=r"the template, line \d+: 'version' is undefined"):
        render_script(spec, program, SITE)
