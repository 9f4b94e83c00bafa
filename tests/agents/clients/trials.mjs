// What trials.py says, for programs in JavaScript.
export const { GATEWAY_URL: URL, GATEWAY_KEY: KEY, MODEL, LONG_MODEL } = process.env;
export const ASK_FOR_TOOL = "Use get_weather for Paris.";
export const ASK = "Tell me a story.";
const TOO_LONG = /context|prompt is too long|exceeds the maximum number of tokens|Input is too long/;
export const WEATHER = {
  type: "object",
  properties: { city: { type: "string" }, thread_id: { type: "string" } },
  required: ["city", "thread_id"],
  additionalProperties: false,
};

export function isStory(text) {
  if (!text?.includes("emulated answer to:")) throw new Error(`no answer: ${text}`);
}

export function isStream(pieces) {
  isStory(pieces.join(""));
  if (pieces.filter(Boolean).length < 3) throw new Error(`${pieces.length} pieces`);
}

export function isTooLong(error, status) {
  if (status !== 400 || !TOO_LONG.test(String(error))) throw new Error(`not the 400: ${status} ${error}`);
}

export async function refused(call, kind) {
  try {
    await call();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error("no error");
}

export async function run(trials) {
  const outcomes = {};
  for (const [name, trial] of Object.entries(trials)) {
    outcomes[name] = await trial().then(() => null, (error) => String(error).slice(0, 400));
  }
  console.log(JSON.stringify({ outcomes }));
}
