# KVLink in a container, made of the same scripts and the same Debian package as everywhere else.
#
#   docker build -t kvlink .                           with the default model: answers at once
#   docker build -t kvlink --target server .           without a model
#   docker run -p 127.0.0.1:8080:8080 kvlink
#   docker run -p 127.0.0.1:8080:8080 -v /srv/kvlink:/models:ro kvlink serve --host 0.0.0.0 --model /models/FILE.gguf
#
# `podman` does the same, with --format docker when building (for the health check). The server
# listens on all addresses of its container: publish the port on loopback, or give it --api-keys.
# Blocks on disk are in the volume /var/cache/kvlink; nothing else is written, so --read-only works.

FROM debian:12-slim AS build
WORKDIR /kvlink
# The set-up alone first: it is done again only when the scripts change.
COPY scripts scripts
RUN scripts/setup.sh
COPY . .
RUN cmake --preset release -DKVLINK_TESTS=OFF -DKVLINK_PYTHON_PACKAGE=OFF \
    && cmake --build --preset package \
    && cpack --preset deb \
    && mv build/packages/kvlink_*.deb /kvlink.deb

FROM debian:12-slim AS server
LABEL org.opencontainers.image.title="KVLink" \
      org.opencontainers.image.description="Language model server that shares KV cache between requests" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /kvlink.deb /tmp/kvlink.deb
# The package brings its libraries: nothing is listed here a second time. The authorities are for a
# Redis over TLS, and are wanted as new as can be.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates /tmp/kvlink.deb \
    && rm -rf /tmp/kvlink.deb /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --home-dir /var/cache/kvlink --shell /usr/sbin/nologin kvlink \
    && install --directory --owner=kvlink --group=kvlink --mode=0700 /var/cache/kvlink
# By number, so that an orchestrator can see that it is not root.
USER 10001:10001
ENV XDG_CACHE_HOME=/var/cache
VOLUME /var/cache/kvlink
EXPOSE 8080
STOPSIGNAL SIGTERM
# Loading a large model takes its time; after that /health answers at once, also under load. 400 is
# what a server with --tls-cert says to plain HTTP.
HEALTHCHECK --interval=15s --timeout=5s --start-period=180s --retries=3 \
    CMD ["/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3 | grep -Eq ' (200|400) '"]
ENTRYPOINT ["kvlink"]
CMD ["serve", "--host", "0.0.0.0"]

FROM server
COPY --from=build /kvlink/.deps/models/SmolLM2-135M-Instruct-Q4_1.gguf /usr/share/kvlink/models/
ENV KVLINK_MODEL=/usr/share/kvlink/models/SmolLM2-135M-Instruct-Q4_1.gguf
