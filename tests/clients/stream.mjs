// Streams one answer with an official SDK for Node: `stream.mjs BASE_URL chat|responses|messages`; prints what it has got.
// It is copied beside the SDK's node_modules, because imports are looked for from where it stands.
const [baseURL, language] = process.argv.slice(2);

async function* pieces() {
  if (language === "messages") {
    const { default: Anthropic } = await import("@anthropic-ai/sdk");
    const client = new Anthropic({ baseURL, apiKey: "k", maxRetries: 0 });
    const messages = [{ role: "user", content: "hi" }];
    for await (const event of client.messages.stream({ model: "m", max_tokens: 5, messages })) {
      if (event.type === "content_block_delta") yield event.delta.text ?? "";
    }
    return;
  }
  const { default: OpenAI } = await import("openai");
  const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: "k", maxRetries: 0 });
  if (language === "chat") {
    const messages = [{ role: "user", content: "hi" }];
    for await (const chunk of await client.chat.completions.create({ model: "m", stream: true, messages })) {
      yield chunk.choices[0]?.delta?.content ?? "";
    }
  } else {
    for await (const event of await client.responses.create({ model: "m", stream: true, input: "hi" })) {
      if (event.type === "response.output_text.delta") yield event.delta;
    }
  }
}

let text = "";
let error = null;
try {
  for await (const piece of pieces()) text += piece;
} catch (problem) {
  error = `${problem?.constructor?.name}: ${problem?.message}`;
}
console.log(JSON.stringify({ text, error }));
