"""docs/config-check.md and ds_schema.json are what the code and the installed DeepSpeed say."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsrun.findings.finding import tables
from dsrun.zero.lint.codes import CODES, ConfigFindings
from dsrun.zero.lint.config_check import check
from dsrun.zero.lint.source import JsonSource
from dsrun.zero.lint.upgrade import upgrade
from dsrun.zero.rules import rules
from dsrun.zero.schema import CONVERTERS, blocks, legacy, removed
from dsrun.zero.view import TRAINER_FILLS

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "config-check.md"


def test_docs_json_example_is_real_output():
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    config = {
        "train_batch_size": 8,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2, "overlap_com": True},
    }
    text = json.dumps(config, indent=1)
    found = [each.as_dict() for each in check(text, world_size=1, target="deepspeed")]
    assert json.loads(example)["findings"] == found


def test_docs_old_keys_are_upgraded():
    page = PAGE.read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.partition("| old |")[2].splitlines()[2:] if line.startswith("|")]
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)} - {"loss_scale", "hysteresis"}
    zero = {
        "cpu_offload",
        "cpu_offload_param",
        "cpu_offload_params",
        "cpu_offload_use_pin_memory",
        "legacy_stage1",
    }
    zero |= {"stage3_gather_fp16_weights_on_model_save", *removed("zero_optimization")}
    for name in names - {"max_grad_norm", "params", "allgather_size", "check_overflow"}:
        if name.startswith(("OneBit", "ZeroOne")):
            config = {"optimizer": {"type": name}}
        else:
            config = {"zero_optimization": {name: True}} if name in zero else {name: True}
        assert upgrade(json.dumps(config)).changes, name


def test_every_lint_code_has_texts():
    """In findings/text or rules.toml; a finding of another code or level is not taken."""
    assert set(CODES) - tables().keys() - {rule.code for rule in rules()} == set()
    with pytest.raises(KeyError):
        ConfigFindings(JsonSource({}), "x").add("no_such_code", ())
    with pytest.raises(ValueError, match="never of level info"):
        ConfigFindings(JsonSource({}), "x").add("not_json", (), level="info", message="")


def test_schema_matches_installed_deepspeed():
    tool = ROOT / "tools" / "harvest_ds_schema.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_schema_type_has_a_converter():
    entries = [entry for block in blocks().values() for entry in block.keys.values() if "block" not in entry]
    words = {word for entry in entries for word in entry.get("types", [entry.get("type")])}
    assert words - {"enum", "literal"} <= set(CONVERTERS)
    assert {name for block in ("", "zero_optimization") for name in removed(block)} <= legacy()["removed"].keys()


def test_trainer_filled_keys_match_transformers():
    """Every key that HfTrainerDeepSpeedConfig names in fill_match and fill_only."""
    package = Path(str(find_spec("transformers").origin)).parent
    source = (package / "integrations" / "deepspeed.py").read_text(encoding="utf-8")
    named = set(re.findall(r'fill_(?:match|only)\(\s*"([\w.]+)"', source))
    assert named == {".".join(path) for path in TRAINER_FILLS}
