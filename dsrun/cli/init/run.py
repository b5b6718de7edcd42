"""What `dsrun init` does: asks, checks, writes run.yaml, and prints the commands that follow."""

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from dsrun.cli.init.data import ask_chat_template, ask_data, ask_task, with_columns
from dsrun.cli.init.interview import InitInterview, question
from dsrun.cli.init.model import ask_model
from dsrun.cli.init.place import ask_place
from dsrun.cli.init.run_yaml import RunYamlAnswers, check_run_file, commands, plan_command, render_run_yaml
from dsrun.cli.init.tuning import ask_tuning
from dsrun.cli.output import print_commands, refuse_file, write_file
from dsrun.runs.folder import RunFolder, default_name, refuse_unfit
from dsrun.system.terminal.stderr import print_detail, print_note

STDOUT = "-"
MOST_RUNS = 1000


def run(**given: Any) -> int:
    """Ask and write; the callback of `dsrun init`."""
    file = given["output_file"]
    to_stdout = given["dry_run"] or file == STDOUT
    if not to_stdout:
        refuse_file(Path(file), "-o", force=given["force"])
    interview = InitInterview(accept_defaults=given["yes"])
    if interview.asks:
        print_detail("Enter takes the answer in brackets, a number one of the choices. Ctrl-C ends without a file.")
    answers = _ask(interview, given)
    name = "run.yaml" if file == STDOUT else file
    text = render_run_yaml(answers, name)
    for notice in check_run_file(text, Path(name).name, slurm=answers.place.slurm is not None):
        print_note(notice)
    if to_stdout:
        click.echo(text, nl=False)
        return 0
    write_file(Path(file), text.encode("utf-8"), force=given["force"])
    print_detail("")
    print_note(f"{file} is written. Next:")
    for following in (commands(answers, name), plan_command(answers, given)):
        print_commands(following)
    return 0


def _ask(interview: InitInterview, given: dict[str, Any]) -> RunYamlAnswers:
    if given["output"]:
        refuse_unfit(Path(given["output"]).expanduser())
    model = ask_model(interview, given)
    data = ask_data(interview, given, model)
    task = ask_task(interview, given, model, data)
    data = with_columns(interview, given, data, task.value)
    template = ask_chat_template(interview, given, model, data)
    place = ask_place(interview, given, is_demo=model.is_demo)
    tuning = ask_tuning(interview, given, model, data, place)
    return RunYamlAnswers(
        model=model,
        data=data,
        task=task,
        place=place,
        tuning=tuning,
        output=interview.answer(question("--output", _check_output, default=_free_folder(model.name)), given["output"]),
        dataset_config=given["dataset_config"],
        chat_template=template,
    )


def _free_folder(model: str) -> str:
    """runs/MODEL, or the first of runs/MODEL-2, … that does not exist."""
    name = default_name(model, datetime.now()).rsplit("-", 2)[0]
    names = (name, *(f"{name}-{number}" for number in range(2, MOST_RUNS)))
    return next(each for each in names if not Path(each).exists())


def _check_output(name: str) -> str:
    folder = Path(name).expanduser()
    refuse_unfit(folder)
    if RunFolder(folder).run_json.exists():
        print_note(f"{name} is the folder of a run: training would go on from its newest checkpoint")
    return name
