"""A Dockerfile's steps, carried out in roots made by debootstrap: what `docker build` does, without a registry."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tests.image.dockerfile import Stage, context_files, declared, expand, pairs, read_stages, words_of
from tests.image.host import Host
from tests.image.root import Root
from tests.integration.kept import kept, user_cache

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Image:
    """A root and what the instructions say about starting a process in it."""

    root: Root
    env: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    labels: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)
    args: dict[str, str] = field(default_factory=dict)


class Builder:
    """Builds the stages of one Dockerfile in `folder`, with the files of `context`: `images`, by their names."""

    def __init__(self, context: Path, folder: Path, host: Host, build_args: Mapping[str, str]) -> None:
        self._context, self._folder, self._host, self._build_args = context, folder, host, build_args
        self.images: dict[str, Image] = {}
        ignore = (context / ".dockerignore").read_text(encoding="utf-8").splitlines()
        self._files = context_files(context, ignore)

    def build(self) -> Image:
        """The last stage."""
        stages = read_stages((self._context / "Dockerfile").read_text(encoding="utf-8"), self._build_args)
        for stage in stages:
            self.images[stage.name] = self._stage(stage)
        return self.images[stages[-1].name]

    def _stage(self, stage: Stage) -> Image:
        folder = self._folder / f"stage-{stage.name}"
        if stage.base in self.images:
            base = self.images[stage.base]
            image = replace(
                base, root=Root.above(folder, base.root), env={**base.env}, args={**base.args}, labels={**base.labels}
            )
        else:
            image = Image(Root.above(folder, self._system(stage.base)))
        for word, value in stage.steps:
            began = time.monotonic()
            self._step(image, word, value)
            if word == "RUN":
                print(f"{stage.name}: RUN {value[:60]}…: {time.monotonic() - began:.0f} s", file=sys.stderr)
        return image

    def _system(self, base: str) -> Path:
        """The folder of a Debian like that of the official image of this name, made once a week."""
        suite = re.fullmatch(r"debian:([a-z]+)-slim", base)
        if not suite:
            raise ValueError(f"{base} cannot be made by debootstrap")
        folder = kept(
            user_cache() / "image/systems", [suite[1], time.strftime("%G-%V")], [], partial(_debootstrap, suite[1])
        )
        return folder / "root"

    def _step(self, image: Image, word: str, value: str) -> None:
        variables = {**image.args, **image.env}
        if word == "ARG":
            image.args |= declared(value, self._build_args, variables)
        elif word == "ENV":
            image.env |= pairs(value, variables)
        elif word == "LABEL":
            image.labels |= pairs(value, variables)
        elif word == "USER":
            image.user = expand(value, variables)
        elif word == "WORKDIR":
            image.workdir = expand(value, variables)
            (image.root.layer / image.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "ENTRYPOINT":
            image.entrypoint = words_of(value)
        elif word == "CMD":
            image.cmd = words_of(value)
        elif word == "COPY":
            self._copy(image, expand(value, variables).split())
        elif word == "RUN":
            self._run(image, value)
        else:
            raise ValueError(f"{word} is not understood here")

    def _copy(self, image: Image, words: list[str]) -> None:
        options = [word for word in words if word.startswith("--")]
        *sources, target = words[len(options) :]
        into = image.root.layer / target.lstrip("/")
        into.mkdir(parents=True, exist_ok=True)
        for source in sources:
            if options:
                (option,) = options
                found = self.images[option.removeprefix("--from=")].root.find(source)
                shutil.copytree(found, into, dirs_exist_ok=True)
                continue
            files = [path for path in self._files if source in (".", str(path))]
            assert files, f"COPY: .dockerignore leaves no {source}"
            for path in files:
                (into / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self._context / path, into / path)

    def _run(self, image: Image, shell: str) -> None:
        env = {"HOME": "/root", **image.args, **image.env, **self._host.env}
        words = ["/bin/sh", "-c", shell]
        argv = image.root.command(words, env=env, cwd=image.workdir, mounts=self._host.mounts)
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\nRUN {shell}: {done.returncode}"


def _debootstrap(suite: str, folder: Path) -> None:
    env = {"PATH": _PATH, **{name: value for name, value in os.environ.items() if name.endswith("_proxy")}}
    argv = ["debootstrap", "--variant=minbase", suite, str(folder / "root")]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    shutil.rmtree(folder / "root/var/cache/apt/archives")
