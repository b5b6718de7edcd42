"""What the conditions in rules.toml ask about the steps of a job, and about what its nodes have for themselves."""

import re
from pathlib import PurePosixPath

from dsrun.slurm.lint.launch import ScriptCommand
from dsrun.slurm.lint.script_facts import PATTERNS, ScriptFacts, group, matches


def _places(text: str) -> list[str]:
    """The folders in a text that each node has for itself."""
    return [re.sub(r"[{}]|/\Z", "", each) for each in PATTERNS["of_one_node"].findall(text)]


def _same(place: str, other: str) -> bool:
    """Whether one of two folders is, or is in, the other."""
    return f"{place}/".startswith(f"{other}/") or f"{other}/".startswith(f"{place}/")


class StepFacts(ScriptFacts):
    """Those of a script, with those of its steps."""

    @staticmethod
    def port_of(launch: ScriptCommand) -> str | None:
        """What a launch is given for its port."""
        return launch.option("--master-port", "--main-process-port", "--rdzv-endpoint", "--standalone")

    def trains_inside(self, call: ScriptCommand) -> bool:
        """Whether a command calls a function of the script's that trains in the foreground."""
        return any(f"function:{call.words[:1][0]}" in each.blocks and not each.background
                   for each in self.script.launches if call.words)  # fmt: skip

    def steps_behind(self, step: ScriptCommand) -> bool:
        """Whether a step on one node has others behind it that the script starts when it has ended."""
        others = (each for each in self.script.started if each.at > step.at and each.words and each.srun is not None)
        return any(each.srun_option("-w", "--nodelist", "-r", "--relative") is not None
                   and PurePosixPath(each.words[0]).name == PurePosixPath(step.words[0]).name
                   for each in others if step.words)  # fmt: skip

    def filled_here(self, command: ScriptCommand) -> str:
        """A folder of one node alone that a command fills, if steps of the job look for it; "" for none."""
        told = next(text for each, text in self.texts if each is command)
        steps = [each for each, _ in self.texts if each.srun is not None and each.at > command.at]
        for place in _places(told) if matches("fills", [told]) else ():
            near = [(each, text) for each, text in self.texts if any(_same(place, one) for one in _places(
                " ".join([text, *(self.script.commands[each.at].words if each in steps else [])])))]  # fmt: skip
            if matches("fills_elsewhere", [text for _, text in near]):
                continue
            if any(map(self._has_left, steps)) and any(
                each in steps or matches("looks_there", [text]) for each, text in near
            ):
                return place
        return ""

    def grown_file(self, command: ScriptCommand) -> str:
        """A file of hosts that a command adds to, and that no job empties before; "" for none."""
        told = next(text for each, text in self.texts if each is command)
        file = group("appends", told)
        emptied = (text for each, text in self.texts if each.at <= command.at and file in text)
        read = any(each.at > command.at and file in text for each, text in self.texts)
        return file if file and read and not matches("of_this_job", [file]) and not matches("empties", emptied) else ""

    def lost_folder(self, launch: ScriptCommand) -> str:
        """A folder of one node alone to which a launch saves, and from which nothing copies below; "" for none."""
        for flag, value in zip(launch.program, [*launch.program[1:], ""], strict=False):
            name, _, joined = flag.partition("=")
            for place in _places(joined or value) if matches("output_flag", [name]) else ():
                below = (text for each, text in self.texts if each.at > launch.at)
                if not any(_same(place, other) for text in below for other in _places(text)):
                    return "" if "trap " in self.script.text else place
        return ""

    def alone(self, command: ScriptCommand) -> bool:
        """Whether a command is in no block, and runs whatever became of the one before it."""
        at = next(at for at, (each, _) in enumerate(self.texts) if each is command)
        return not command.blocks and not (at and self.texts[at - 1][0].end in ("&&", "||"))

    def launches_below(self, command: ScriptCommand) -> list[ScriptCommand]:
        return [each for each in self.script.launches if each.at > command.at]

    def side_by_side(self, launch: ScriptCommand) -> list[ScriptCommand]:
        """The other launches of a kind that the batch shell runs at the same time."""
        beside = (each for each in self.script.launches if each.background and each.srun is None)
        return [each for each in beside if each is not launch and each.kind == launch.kind]
