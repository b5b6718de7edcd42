"""Texts that reach the program unchanged: YAML that nobody reads as something else, and $(VAR) that nobody expands."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dsrun.errors import UsageError
from dsrun.kubernetes.notation import (
    is_key,
    is_label_value,
    is_namespace,
    mount,
    quantity,
    slug,
    toleration,
)
from dsrun.kubernetes.objects import manifest
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.kubernetes.workload import TrainingWorkload
from tests.unit.kubernetes.jobs import container_of, objects_of

NASTY = [
    "$(HOME)", "$$(HOME)", "$", "$$", "$(", "$(a", "${x}", "it's", 'a "b"', "two\nlines", "cr\r\nlf", "tab\t", " ", "",
    "y", "N", "yes", "off", "true", "null", "~", "1", "1e-4", "1e3", "0x1f", "010", "0o7", "0b1", "1_000", "1:30", ".5",
    "+1", "-1", ".inf", ".NaN", "2026-01-01", "=", "<<", "- x", "a: b", "a #b", "#x", "*x", "&x", "!x", "%x", "@x",
    "`x`", "{x}", "[x]", "|", ">", "?", "--", "---", "...", "-", "--lr=1e-4", "a:", "\u2028", "\x85", "\x07", "ă",
    "🙂", "a\\n",
]  # fmt: skip
# Not far from what some options take.
ALMOST = ["\0", "x" * 300, "a=b", "A=b", "a=$(b)", "A=b:c", "a:/b", "a:/b:ro", "a/b=1", "1Gi", "-0", "9" * 30]
TEXT = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12),
    st.lists(st.sampled_from(NASTY), max_size=3).map("".join),
)
# What the YAML library of Kubernetes reads as something else than a text (resolve.go of go.yaml.in/yaml/v2).
NOT_TEXT = re.compile(
    r"~|null|y|n|yes|no|on|off|true|false|=|<<|[-+]?(\.inf|[0-9.][0-9._]*([eE][-+]?[0-9]+)?|0[xob][0-9a-f_]+)|\.nan"
    r"|\d{4}-\d\d?-\d\d?.*|",
    re.IGNORECASE,
)


def expanded(text: str, environment: dict[str, str]) -> str:
    """What a container gets for a word of `args`: $(NAME) where there is such a variable, and $ for $$."""
    pattern = re.compile(r"\$\$|\$\(([^)]*)\)")
    return pattern.sub(lambda found: "$" if found[0] == "$$" else environment.get(found[1], found[0]), text)


@given(TEXT)
def test_dollar_is_not_expanded(text):
    container = container_of(objects_of(TrainingWorkload(words=("./x", text), name="x")))
    assert expanded(container["args"][-1], {"HOME": "/root", "a": "b"}) == text


def test_expansion_would_have_happened():
    """The test above would notice an unescaped reference."""
    assert expanded("a $(HOME) $$(HOME) $(NO)", {"HOME": "/root"}) == "a /root $(HOME) $(NO)"


@given(st.lists(TEXT, min_size=1, max_size=4), TEXT)
def test_yaml_gives_back_every_text(words, value):
    """A reader of YAML 1.1, and one that takes more for numbers than Python's does, read what was written."""
    objects = objects_of(TrainingWorkload(words=tuple(words), name="x"), env=[f"A={value}"])
    text = manifest(objects)
    assert list(yaml.safe_load_all(text)) == objects
    for node in plain_scalars(yaml.compose(text)):
        if node.tag.endswith(":str"):
            assert not NOT_TEXT.fullmatch(node.value), node.value


def plain_scalars(node: yaml.Node) -> list[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        return [] if node.style else [node]
    below = [each for pair in node.value for each in pair] if isinstance(node, yaml.MappingNode) else node.value
    return [found for each in below for found in plain_scalars(each)]


@pytest.mark.parametrize("name", [each.name for each in fields(KubernetesSpec)])
def test_odd_values_are_refused_or_rendered(name):
    """Whatever somebody writes: one line that names the option, or a manifest."""
    others = {"nodes": "2"} if name != "nodes" else {}
    others |= {"claim_size": "1Gi"} if name == "storage_class" else {}
    refusals = []
    for value in [*NASTY, *ALMOST]:
        try:
            text = manifest(objects_of(**{name: [value], **others}))
        except UsageError as error:
            refusals.append(str(error))
        else:
            assert list(yaml.safe_load_all(text))
    where = (f"k8s.{name}: ", f"--{name.replace('_', '-')}")
    assert [line for line in refusals if not line.startswith(where) or "\n" in line] == []


def test_manifest_begins_with_its_command():
    """One line that says where it came from, without tokens; references to secrets stay."""
    token = "hf_" + "a1B2" * 9
    command = ("dsrun", "render-k8s", "--secret", "A=b:c", "--secret=D=e:f", "--name", "two\nlines", "--", "x", token)
    first, rest = manifest(objects_of(), command).split("\n", 1)
    assert re.match(r"# Rendered by dsrun \S+: dsrun render-k8s --secret A=b:c --secret=D=e:f --name ", first)
    assert rest.startswith("---\napiVersion: batch/v1\n")
    assert token not in first
    assert "*** " not in first


def test_text_that_is_not_utf8_is_refused():
    with pytest.raises(UsageError, match="is not UTF-8"):
        manifest(objects_of(TrainingWorkload(words=("./x", "\udcff"), name="x")))


def test_arguments_escape_references():
    container = container_of(objects_of(TrainingWorkload(words=("./x", "$(HOME)"), name="x"), env=["A=$(HOME) $B"]))
    assert container["args"][-1] == "$$(HOME)"
    assert {"name": "A", "value": "$$(HOME) $$B"} in container["env"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("500m", 0.5), ("200Gi", 200 * 2**30), ("1.5G", 1.5e9), ("1e3", 1000), ("2E", 2e18), ("0", 0)],
)
def test_quantities(text, value):
    assert float(quantity(text)) == value


@pytest.mark.parametrize("text", ["", "8 Gi", "GiB", "200GiB", "-1", "1e", "1e400", "١", "1,5", "Gi", "0x1", "1K"])
def test_what_is_no_quantity(text):
    assert quantity(text) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("google/T5_Large", "t5-large"),
        ("t5-11b", "t5-11b"),
        ("7b.model", "run-7b-model"),
        ("…", "run"),
        ("-x-", "x"),
        ("Llama-3.1-8B-Instruct-with-a-very-long-name", "llama-3-1-8b-instruct"),
    ],
)
def test_name_from_model(name, found):
    assert slug(name, 21) == found


def test_keys_and_values_of_labels():
    assert all(map(is_key, ("a", "nvidia.com/gpu", "a.b/C_d.e-f")))
    assert not any(map(is_key, ("", "/a", "a/", "A.b/c", "a/b/c", "-a", "a b", "x" * 64)))
    assert all(map(is_label_value, ("", "a", "A_b.c-9", "x" * 63)))
    assert not any(map(is_label_value, ("-a", "a b", "ü", "x" * 64)))


def test_names_of_namespaces():
    assert all(map(is_namespace, ("a", "2024-team", "x" * 63)))
    assert not any(map(is_namespace, ("", "a.b", "A", "a-", "x" * 64)))


@pytest.mark.parametrize("text", ["", "=a", ":NoSchedule", "a:noschedule", "a=b c", "a=b:", "a:NoExecute:60"])
def test_what_is_no_toleration(text):
    assert toleration(text) is None


@pytest.mark.parametrize("text", ["a", "a:", "a:b", "a:/", "a:/../b", "a:/b:rw", "A:/b", ":/b", "a:/b:ro:x"])
def test_what_is_no_mount(text):
    assert mount(text) is None
