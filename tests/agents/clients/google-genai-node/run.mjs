// The google-genai SDK for Node.
import { ApiError, GoogleGenAI } from "@google/genai";
import { ASK, ASK_FOR_TOOL, KEY, LONG_MODEL, MODEL, URL, WEATHER, isStory, isStream, isTooLong, refused, run } from "./trials.mjs";

const { models } = new GoogleGenAI({ apiKey: KEY, httpOptions: { baseUrl: URL } });
const declared = { name: "get_weather", description: "The weather.", parametersJsonSchema: WEATHER };

await run({
  async tool() {
    const config = { tools: [{ functionDeclarations: [declared] }] };
    const contents = [{ role: "user", parts: [{ text: ASK_FOR_TOOL }] }];
    const turn = await models.generateContent({ model: MODEL, contents, config });
    const [{ id, name, args }] = turn.functionCalls;
    const functionResponse = { id, name, response: { output: `sunny in ${args.city}` } };
    contents.push(turn.candidates[0].content, { role: "user", parts: [{ functionResponse }] });
    isStory((await models.generateContent({ model: MODEL, contents, config })).text);
  },
  async stream() {
    const pieces = [];
    for await (const chunk of await models.generateContentStream({ model: MODEL, contents: ASK })) pieces.push(chunk.text);
    isStream(pieces);
  },
  async error() {
    for (const call of [models.generateContent, models.generateContentStream]) {
      const problem = await refused(() => call.call(models, { model: LONG_MODEL, contents: ASK }), ApiError);
      isTooLong(problem, problem.status);
    }
  },
});
