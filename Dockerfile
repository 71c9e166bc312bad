# Taylor in a container: docker build -t taylor . && docker run --rm -v "$PWD:/work" taylor solve config.yaml -evaluate y
FROM python:3.13-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl \
    && useradd --create-home --uid 10001 taylor
USER 10001
ENV NUMBA_CACHE_DIR=/home/taylor/.cache/numba
# The solver's kernels, compiled once for every container.
RUN taylor warm
WORKDIR /work
ENTRYPOINT ["taylor"]
CMD ["--help"]
