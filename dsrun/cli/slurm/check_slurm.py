"""`dsrun check-slurm`: what is wrong with an sbatch script, or dsrun's script for the same job."""

from dsrun.cli.config.lint import read_text
from dsrun.cli.options import declared_in
from dsrun.cli.output import print_findings, print_json
from dsrun.errors import EXIT_FINDINGS
from dsrun.findings.finding import has_errors
from dsrun.slurm.lint.convert import convert
from dsrun.slurm.lint.read_script import read_script
from dsrun.slurm.lint.script_check import check_script, fate
from dsrun.system.shell import command_line
from dsrun.system.terminal.stderr import print_note
from dsrun.zero.lint.codes import printable


def check(*, file: str, converts: bool, form: str) -> int:
    text, name = read_text(file, what="an sbatch script")
    if converts:
        args = convert(read_script(text), name)
        print_note(command_line(["dsrun", "render-slurm", *args]))
        for each in check_script(text, printable(name)):
            print_note(fate(each))
        render = declared_in("slurm/render.toml")
        return int(render.main(list(args), prog_name="dsrun render-slurm", standalone_mode=False) or 0)
    shown = printable(name)
    findings = check_script(text, shown)
    if form == "json":
        print_json({"file": shown, "findings": findings})
    else:
        print_findings(findings, total=shown)
    return EXIT_FINDINGS if has_errors(findings) else 0
