"""DSPy: one predictor over many examples by `batch`, 50 threads."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy

ITEMS = int(os.environ["ITEMS"])

dspy.configure(lm=dspy.LM("openai/gpt-4o-mini", api_base=os.environ["OPENAI_BASE_URL"], max_tokens=50))
examples = [
    dspy.Example(question=f"What is 2 + 2? Question {index}.").with_inputs("question") for index in range(ITEMS)
]
answers = dspy.Predict("question -> answer").batch(examples, num_threads=50, max_errors=ITEMS)
done = sum(answer is not None and bool(answer.answer) for answer in answers)
print(json.dumps({"done": done, "failed": ITEMS - done}))
