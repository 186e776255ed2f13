# Tidegate in a container:
#
#   docker build -t tidegate .
#   docker run -p 8000:8000 -v ./tidegate.yaml:/etc/tidegate/tidegate.yaml:ro --stop-timeout 45 tidegate
#
# The configuration must listen on 0.0.0.0:8000 (or on another port: then give HEALTHCHECK's command its address).

FROM rust:1.95-slim-bookworm AS build
# zlib-ng, a part of Pingora, is C and built by cmake. Versions are those of the Debian release of the base image.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Kernels for arm64 have pages of up to 64 KiB, and the allocator (jemalloc) must know the largest that it may meet.
ARG TARGETARCH
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    if [ "$TARGETARCH" = arm64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16; fi \
    && cargo build --release --locked --bin tidegate \
    && install -D -m 755 target/release/tidegate /out/tidegate

# No shell and no package manager, only libc and what a program of this kind links: the same Debian release as above.
FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title="Tidegate" \
      org.opencontainers.image.description="A load balancer for vLLM servers that routes requests by prompt length and load" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/tidegate/tidegate"
COPY --from=build /out/tidegate /usr/local/bin/tidegate
COPY LICENSE /usr/share/licenses/tidegate/LICENSE
# The image's user "nonroot", by number, so that Kubernetes can check runAsNonRoot.
USER 65532:65532
EXPOSE 8000
# Running requests may go on for shutdown.delay and shutdown.grace: allow more time than that before the kill.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/tidegate", "healthcheck", "127.0.0.1:8000"]
ENTRYPOINT ["/usr/local/bin/tidegate"]
CMD ["--conf", "/etc/tidegate/tidegate.yaml"]
