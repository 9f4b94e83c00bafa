// Vercel's AI SDK: a loop of tools, by OpenAI's provider (Responses and chat completions) and Anthropic's.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { ASK, ASK_FOR_TOOL, KEY, LONG_MODEL, MODEL, URL, WEATHER, isStory, isStream, isTooLong, refused, run } from "./trials.mjs";

const openai = createOpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });
const anthropic = createAnthropic({ baseURL: `${URL}/v1`, apiKey: KEY });
const models = (name) => [openai.responses(name), openai.chat(name), anthropic(name)];

await run({
  async tool() {
    for (const model of models(MODEL)) {
      const calls = [];
      const get_weather = tool({
        description: "The weather.",
        inputSchema: jsonSchema(WEATHER),
        execute: async (given) => {
          calls.push(given);
          return "sunny";
        },
      });
      const answer = await generateText({ model, prompt: ASK_FOR_TOOL, tools: { get_weather }, stopWhen: stepCountIs(4) });
      isStory(answer.text);
      if (calls.length !== 1) throw new Error(`${calls.length} calls`);
    }
  },
  async stream() {
    for (const model of models(MODEL)) {
      const pieces = [];
      for await (const piece of streamText({ model, prompt: ASK }).textStream) pieces.push(piece);
      isStream(pieces);
    }
  },
  async error() {
    for (const model of models(LONG_MODEL)) {
      const problem = await refused(() => generateText({ model, prompt: ASK }), APICallError);
      isTooLong(problem, problem.statusCode);
    }
  },
});
