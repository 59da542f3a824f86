# The service and its commands. Build: docker build -t rollcall:0.1.0 .
#
# Debian rather than Alpine: what Rollcall runs on here is plain JavaScript and would start on both, but the tests run
# on glibc, and Alpine's Node is an unofficial build.
ARG NODE_IMAGE=node:22.23.4-trixie-slim

FROM ${NODE_IMAGE} AS build
WORKDIR /build
COPY package.json package-lock.json ./
# The compiler is an optional package of the platform, so none are left out here. Scripts would build before the
# sources are there.
RUN npm ci --ignore-scripts --no-audit --no-fund
COPY tsconfig.json tsconfig.build.json ./
COPY scripts scripts
COPY src src
RUN npm run build

# Without the optional packages there are no Postgres programs and no canvas, 95 MB that only `dev` and `demo` use.
FROM ${NODE_IMAGE} AS dependencies
WORKDIR /build
COPY package.json package-lock.json ./
RUN npm ci --omit=dev --omit=optional --ignore-scripts --no-audit --no-fund

FROM ${NODE_IMAGE}
LABEL org.opencontainers.image.title="rollcall" \
      org.opencontainers.image.description="An event-sourced service for the life of asynchronous tasks" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV NODE_ENV=production
WORKDIR /app
COPY LICENSE package.json ./
COPY --from=dependencies /build/node_modules node_modules
COPY --from=build /build/dist dist
# Its files belong to root: the process can read them and change none.
USER node
EXPOSE 8080
# Without a shell between, so that signals reach node. The option is the one of dist/cli/main.js's first line.
ENTRYPOINT ["node", "--max-semi-space-size=64", "dist/cli/main.js"]
CMD ["serve"]
