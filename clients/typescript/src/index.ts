/**
 * A typed client of the HTTP API: every path, parameter and answer of `hardwon serve`.
 *
 *     const library = createLibrary("http://127.0.0.1:8420", { token: process.env.HARDWON_TOKEN });
 *     const { data } = await library.POST("/v1/recall", { body: { text: "where is a spoon?" } });
 *
 * `schema.ts` is generated from `openapi.json`: `npm run generate`.
 */
import createClient, { type Client } from "openapi-fetch";

import type { components, paths } from "./schema.js";

export type { components, paths };

/** What a failed call raises: the status and the `detail` of the server. */
export class HardwonError extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
    this.name = "HardwonError";
  }
}

export interface Options {
  /** A token of `hardwon serve token add`; not needed on the server's own machine while it has none. */
  token?: string;
  /** Another implementation of fetch. */
  fetch?: typeof globalThis.fetch;
}

/** Return a client of the server at an address. A call that the server refuses raises HardwonError. */
export function createLibrary(baseUrl: string, options: Options = {}): Client<paths> {
  const client = createClient<paths>({
    baseUrl,
    headers: options.token ? { Authorization: `Bearer ${options.token}` } : {},
    ...(options.fetch ? { fetch: options.fetch } : {}),
  });
  client.use({
    async onResponse({ response }) {
      if (response.ok) return undefined;
      const problem = await response.clone().json().catch(() => ({}));
      const detail = typeof problem.detail === "string" ? problem.detail : response.statusText;
      throw new HardwonError(response.status, detail);
    },
  });
  return client;
}
