// The anthropic SDK for Node.
import Anthropic from "@anthropic-ai/sdk";
import { ASK, ASK_FOR_TOOL, KEY, LONG_MODEL, MODEL, URL, WEATHER, isStory, isStream, isTooLong, refused, run } from "./trials.mjs";

const { messages } = new Anthropic({ baseURL: URL, apiKey: KEY });
const tools = [{ name: "get_weather", description: "The weather.", input_schema: WEATHER }];
const asked = { max_tokens: 500, messages: [{ role: "user", content: ASK }] };

await run({
  async tool() {
    const history = [{ role: "user", content: ASK_FOR_TOOL }];
    const turn = await messages.create({ model: MODEL, max_tokens: 500, messages: history, tools });
    const call = turn.content.find((block) => block.type === "tool_use");
    const content = [{ type: "tool_result", tool_use_id: call.id, content: `sunny in ${call.input.city}` }];
    history.push({ role: "assistant", content: turn.content }, { role: "user", content });
    isStory((await messages.create({ model: MODEL, max_tokens: 500, messages: history, tools })).content.at(-1).text);
  },
  async stream() {
    const pieces = [];
    await messages.stream({ model: MODEL, ...asked }).on("text", (piece) => pieces.push(piece)).finalMessage();
    isStream(pieces);
  },
  async error() {
    for (const stream of [false, true]) {
      const call = () => messages.create({ model: LONG_MODEL, stream, ...asked });
      const problem = await refused(call, Anthropic.BadRequestError);
      isTooLong(problem, problem.status);
    }
  },
});
