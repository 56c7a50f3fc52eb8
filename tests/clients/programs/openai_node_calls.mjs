// openai-node: it throws where a stream lacks a role or a finish reason.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [
  { role: "system", content: "Repeat me." },
  { role: "user", content: "hello" },
];
const said = "system\nRepeat me.";

assert.deepEqual((await client.models.list()).data.map((found) => found.id), [model]);

const whole = await client.chat.completions.create({ model, messages });
assert.equal(whole.choices[0].message.content, said);

let streamed = "";
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  streamed += chunk.choices[0].delta.content ?? "";
}
assert.equal(streamed, said);

const helper = client.chat.completions.stream({ model, messages, stream_options: { include_usage: true } });
const final = await helper.finalChatCompletion();
assert.deepEqual([final.choices[0].message.content, final.choices[0].finish_reason], [said, "stop"]);
assert.equal((await helper.totalUsage()).total_tokens, whole.usage.total_tokens);

const text = await client.completions.create({ model, prompt: "one two three", max_tokens: 3 });
assert.equal(text.choices[0].text, "one two three");

await assert.rejects(client.chat.completions.create({ model, messages, temperature: -1 }), OpenAI.BadRequestError);
await assert.rejects(client.chat.completions.create({ model: "nothing", messages }), OpenAI.NotFoundError);

const left = await client.completions.create({ model, prompt: "hello", max_tokens: 8000, stream: true });
for await (const _ of left) break;
