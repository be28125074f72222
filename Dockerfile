# The two commands of the README on the CPU:
#   docker build -t pe_experiments .
#   docker run -it -v "$PWD/results:/app/results" pe_experiments make train
#   docker run -it -v "$PWD/results:/app/results" pe_experiments .venv/bin/python scripts/train.py sweep=first_look
# For a GPU: docker build --build-arg PIP_ARGS= -t pe_experiments . and docker run --gpus all ...
FROM python:3.13-slim
RUN apt-get update && apt-get install -y --no-install-recommends make git && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY . .
ARG PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
RUN make .venv/.done PIP_ARGS="$PIP_ARGS"
CMD ["make", "train"]
