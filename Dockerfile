# lockstep on a CPU, with the pinned packages:
#     docker build -t lockstep --build-arg TORCH_INDEX=URL .
#     docker run --rm -v "$PWD/runs:/lockstep/runs" --user "$(id -u):$(id -g)" lockstep train cartpole
FROM python:3.11-slim-bookworm AS build

# address of PyTorch's package index of CPU builds; without it, pip installs a build for CUDA, which is several GB larger
ARG TORCH_INDEX=
ARG EXTRAS=box2d,mujoco,video,report
WORKDIR /source
# g++ builds the interpreter of kernels, which becomes part of the installed package
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/lockstep
ENV PATH=/opt/lockstep/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY constraints.txt ./
# a layer of its own: PyTorch is most of the image, and changes rarely
RUN pip install -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN pip install -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} ".[${EXTRAS}]"

FROM python:3.11-slim-bookworm

# libegl1 and libgl1 draw MuJoCo without a display
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libegl1 libgl1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 lockstep \
    && install --directory --owner lockstep /lockstep /lockstep/runs
COPY --from=build /opt/lockstep /opt/lockstep
# any user may run the image: caches are in /tmp
ENV PATH=/opt/lockstep/bin:$PATH MPLCONFIGDIR=/tmp/matplotlib LOCKSTEP_CACHE=/tmp/lockstep
USER 1000
WORKDIR /lockstep
ENTRYPOINT ["lockstep"]
CMD ["--help"]
