// The openai SDK for Node: each trial by chat completions and by Responses.
import OpenAI from "openai";
import { ASK, ASK_FOR_TOOL, KEY, LONG_MODEL, MODEL, URL, WEATHER, isStory, isStream, isTooLong, refused, run } from "./trials.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });
const chat = client.chat.completions;
const responses = client.responses;
const declared = { name: "get_weather", description: "The weather.", parameters: WEATHER };
const messages = [{ role: "user", content: ASK }];

await run({
  async tool() {
    const history = [{ role: "user", content: ASK_FOR_TOOL }];
    let tools = [{ type: "function", function: declared }];
    const turn = (await chat.create({ model: MODEL, messages: history, tools, tool_choice: "auto" })).choices[0].message;
    JSON.parse(turn.tool_calls[0].function.arguments);
    history.push(turn, { role: "tool", tool_call_id: turn.tool_calls[0].id, content: "sunny" });
    isStory((await chat.create({ model: MODEL, messages: history, tools })).choices[0].message.content);

    const input = [{ role: "user", content: ASK_FOR_TOOL }];
    tools = [{ type: "function", strict: true, ...declared }];
    const answer = await responses.create({ model: MODEL, input, tools, metadata: { thread_id: "01a2" }, store: false });
    const call = answer.output.find((item) => item.type === "function_call");
    input.push(...answer.output, { type: "function_call_output", call_id: call.call_id, output: "sunny" });
    isStory((await responses.create({ model: MODEL, input, tools, store: false })).output_text);
  },
  async stream() {
    let pieces = [];
    for await (const chunk of await chat.create({ model: MODEL, messages, stream: true })) {
      pieces.push(chunk.choices[0]?.delta.content ?? "");
    }
    isStream(pieces);
    pieces = [];
    for await (const event of await responses.create({ model: MODEL, input: ASK, stream: true })) {
      if (event.type === "response.output_text.delta") pieces.push(event.delta);
    }
    isStream(pieces);
  },
  async error() {
    for (const stream of [false, true]) {
      for (const call of [
        () => chat.create({ model: LONG_MODEL, messages, stream }),
        () => responses.create({ model: LONG_MODEL, input: ASK, stream }),
      ]) {
        const problem = await refused(call, OpenAI.BadRequestError);
        isTooLong(problem, problem.status);
      }
    }
  },
});
