# Built where the tools are; what runs has Node's runtime and earmark, no shell, no npm, and is nobody in particular.
FROM node:20-bookworm-slim AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci
COPY tsconfig.json ./
COPY src src
RUN npm run build && npm prune --omit=dev && mkdir /state

FROM gcr.io/distroless/nodejs20-debian12:nonroot
WORKDIR /app
ENV NODE_ENV=production
COPY --from=build /app/node_modules node_modules
COPY --from=build /app/dist dist
COPY --from=build /app/src/ledger/lua src/ledger/lua
COPY package.json package.json
COPY proto proto
COPY envoy envoy
# A volume that is mounted here belongs to the same user, so that it can be written.
COPY --from=build --chown=65532:65532 /state /var/lib/earmark
USER 65532:65532
EXPOSE 9191 9192 9193
ENTRYPOINT ["/nodejs/bin/node", "/app/dist/main.js"]
CMD ["serve"]
