// Run against a server at HARDWON_URL, whose token is in HARDWON_TOKEN.
import assert from "node:assert/strict";
import { test } from "node:test";

import { HardwonError, createLibrary } from "../dist/index.js";

const url = process.env.HARDWON_URL;
const library = createLibrary(url, { token: process.env.HARDWON_TOKEN });

test("an item is added, recalled and found", async () => {
  const item = { kind: "insight", title: "Spoons lie in drawers", trust: "trusted" };
  const added = await library.POST("/v1/items", { body: { items: [item] } });
  assert.equal(added.response.status, 200);
  const recalled = await library.POST("/v1/recall", { body: { text: "where is a spoon?" } });
  assert.match(JSON.stringify(recalled.data), /Spoons lie in drawers/);
  const listed = await library.GET("/v1/items", { params: { query: { kind: ["insight"] } } });
  assert.match(JSON.stringify(listed.data), /Spoons lie in drawers/);
});

test("an action that a guardrail forbids is refused", async () => {
  const guardrail = {
    kind: "guardrail", title: "do not jump", condition: { text: "yard" }, forbids: "jump", confidence: 0.9, trust: "trusted",
  };
  await library.POST("/v1/items", { body: { items: [guardrail] } });
  const { data } = await library.POST("/v1/check", { body: { state: { observation: "A yard." }, action: "jump" } });
  assert.equal(data.allowed, false);
});

test("a refused call raises the server's own words", async () => {
  await assert.rejects(
    createLibrary(url, { token: "wrong" }).GET("/v1/stats", {}),
    (error) => error instanceof HardwonError && error.status === 401 && /token/.test(error.message),
  );
});
