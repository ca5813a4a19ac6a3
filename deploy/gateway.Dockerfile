# The gateway, and everything else that `tallystick` does, from hashed requirements. Build it from the root of the repository:
#   docker build -f deploy/gateway.Dockerfile -t tallystick:local .
ARG PYTHON=3.13.9-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
RUN python -m venv /opt/tallystick
COPY requirements/gateway.txt requirements/
RUN /opt/tallystick/bin/pip install --no-cache-dir --disable-pip-version-check \
    --require-hashes --no-deps --only-binary :all: -r requirements/gateway.txt
COPY pyproject.toml README.md LICENSE ./
COPY verifier verifier
COPY keys keys
COPY gateway gateway
RUN /opt/tallystick/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation .

FROM python:${PYTHON}
# A volume that is mounted on the folder for the first time takes its owner and mode from here.
RUN useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin tallystick \
    && install -d -o tallystick -g tallystick -m 0700 /var/lib/tallystick
COPY --from=build /opt/tallystick /opt/tallystick
ENV PATH=/opt/tallystick/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/tallystick
VOLUME /var/lib/tallystick
STOPSIGNAL SIGTERM
ENTRYPOINT ["tallystick"]
CMD ["serve", "--data", "/var/lib/tallystick/main"]
