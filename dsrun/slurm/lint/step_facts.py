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

    def eats_list(self, command: ScriptCommand) -> bool:
        """Whether a command reads from the list that a loop around it reads line by line."""
        heads = [each for each in self.script.started if each.at < command.at and each.words[:1] == ("read",)]
        if not heads or heads[-1].blocks[-1:] != ("while",) or "while" not in command.blocks:
            return False
        inside = [word for each in self.script.commands[heads[-1].at + 1 : command.at] for word in each.words[:2]]
        own = (self.script.commands[command.at - 1].end, " ".join(heads[-1].words), command.text, *command.words)
        left = "while" in inside or inside.count("done") > inside.count("for")
        return not (left or command.document or matches("other_input", own))

    def devices_shown(self, launch: ScriptCommand) -> int | None:
        """The GPUs that a constant CUDA_VISIBLE_DEVICES shows to a launch, to a step the one set in it; or None."""
        value = ""
        for each in self.script.started[: self.script.started.index(launch) + 1]:
            for name, given, prefixed in each.assignments:
                reaches = each is launch if prefixed else launch.srun is None or each.shell == "step"
                if name == "CUDA_VISIBLE_DEVICES" and reaches:
                    value = given if prefixed or not each.blocks else ""
            value = "" if "CUDA_VISIBLE_DEVICES" in each.words[1:] else value
        reaches = launch.shell == "step" or launch.srun is None or "env" in launch.wrappers
        return len(value.split(",")) if reaches and matches("devices", [value]) else None

    def at_own_path(self, launch: ScriptCommand) -> bool:
        """Whether a launch looks for its program where $0 leads."""
        gone = [each for each, _ in self.texts if each.at < launch.at and each.words[:1] == ("cd",)][-1:]
        file = launch.program[0] if launch.program else "-"
        led = [" ".join(each.words) for each in gone if self.alone(each) and file[:1] not in "/$~-"]
        return matches("own_path", [file, *led]) and not matches("other_path", [file, *led])

    def launches_below(self, command: ScriptCommand) -> list[ScriptCommand]:
        return [each for each in self.script.launches if each.at > command.at]

    def side_by_side(self, launch: ScriptCommand) -> list[ScriptCommand]:
        """The other launches of a kind that the batch shell runs at the same time."""
        beside = (each for each in self.script.launches if each.background and each.srun is None)
        return [each for each in beside if each is not launch and each.kind == launch.kind]
