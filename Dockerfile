# dsrun with its libraries, and DeepSpeed's operations compiled for the GPUs of `--build-arg ARCH=…`: docs/image.md.
# A Debian whose python3 is 3.11 to 3.13.
ARG BASE=debian:bookworm-slim

# What training needs at run time, except for dsrun and DeepSpeed themselves, which change more often.
FROM ${BASE} AS libraries
ARG DEBIAN_FRONTEND=noninteractive
# g++ and the headers of Python: Triton compiles its launchers, torch.compile its glue, DeepSpeed the operations that its
# wheel lacks, all at the first step. ibverbs-providers: NCCL opens libibverbs and the driver of the adapter by itself.
# No program needs to be set-user-ID in a container.
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      ca-certificates g++ ibverbs-providers libaio-dev python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb \
 && find / -xdev -type f -perm /6000 -exec chmod a-s {} +
ENV PATH=/opt/dsrun/bin:$PATH
# pip reads these variables. Where its packages come from, torch's too, is said on the command line of the build.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_NO_CACHE_DIR=1
ARG PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml constraints.txt /opt/dsrun/
WORKDIR /opt/dsrun
RUN python3 -m venv /opt/dsrun \
 && python3 -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; o = p["optional-dependencies"]; \
print(*(r for r in p["dependencies"] + o["train"] + o["observe"] if not r.startswith("deepspeed")), sep="\n")' \
      > /tmp/requirements.txt \
 && pip install --constraint constraints.txt --requirement /tmp/requirements.txt \
 && rm /tmp/requirements.txt

# The two wheels. Neither nvcc nor the sources get into the image.
FROM libraries AS wheels
ARG ARCH=ampere,ada,hopper,blackwell
ARG OPS=default
ARG DSRUN_CACHE=/tmp/dsrun
# nvcc of the same CUDA as torch's; `dsrun build-wheel` finds it in site-packages.
RUN cuda=$(python -c 'import torch; print(torch.version.cuda or "")') \
 && pip install --constraint constraints.txt hatchling setuptools \
 && if [ -n "$cuda" ] && [ "$ARCH" != cpu ]; then \
      pip install "cuda-toolkit[nvcc,cccl,crt,nvvm,cudart,profiler]==$cuda.*"; \
    fi
COPY . /src
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /opt/dsrun/wheels /src \
 && pip install --no-deps /opt/dsrun/wheels/dsrun-*.whl \
 && cp "$(dsrun build-wheel --arch "$ARCH" --ops "$OPS")" /opt/dsrun/wheels/

FROM libraries
ARG ARCH=ampere,ada,hopper,blackwell
ARG REVISION
LABEL org.opencontainers.image.title="dsrun" \
      org.opencontainers.image.description="Train Hugging Face models under DeepSpeed" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      dsrun.arch="${ARCH}"
COPY --from=wheels /opt/dsrun/wheels /opt/dsrun/wheels
RUN pip install --constraint constraints.txt /opt/dsrun/wheels/*.whl
# Caches are below HOME: of user 1000, and of any other that a cluster prefers.
RUN useradd --non-unique --uid 1000 --create-home dsrun \
 && chmod 1777 /home/dsrun
ENV HOME=/home/dsrun
USER 1000:1000
WORKDIR /home/dsrun
# No shell and no init between: SIGTERM reaches the supervisor, which saves a checkpoint.
ENTRYPOINT ["dsrun"]
CMD ["--help"]
