# The app on the CPU: TORCH_INDEX=ADDRESS docker compose up, or
# docker build -t vitviz --build-arg TORCH_INDEX=ADDRESS . && docker run -p 7860:7860 vitviz
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /app
COPY requirements.txt requirements.lock ./
# Install torch without CUDA from its own index, then all other packages by hash.
ARG TORCH_INDEX
RUN : "${TORCH_INDEX:?Expected the build argument TORCH_INDEX, got none. Give the address of the index of CPU wheels that pytorch.org/get-started shows.}" \
    && grep -E '^(torch|torchvision)==' requirements.txt > torch.txt \
    && pip install --no-deps --index-url "$TORCH_INDEX" -r torch.txt \
    && pip install --no-deps --require-hashes -r requirements.lock

RUN useradd --uid 1000 --no-create-home vitviz \
    && install --directory --owner vitviz /data
COPY app.py LICENSE THIRD_PARTY_NOTICES.md ./
COPY vitviz vitviz
COPY checkpoints checkpoints
COPY examples examples
RUN python -m compileall -q app.py vitviz

# The app writes only model caches (/data), so everything else may be read-only.
ENV GRADIO_SERVER_NAME=0.0.0.0 \
    GRADIO_SERVER_PORT=7860 \
    HOME=/data \
    XDG_CACHE_HOME=/data \
    HF_HOME=/data/huggingface \
    TORCH_HOME=/data/torch
USER 1000
VOLUME /data
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as web; web.urlopen(f'http://127.0.0.1:{os.environ[\"GRADIO_SERVER_PORT\"]}/healthz', timeout=8)"]
CMD ["python", "app.py"]
