"""Every error that providers are known to send, and what it means: the rows of the providers' error references.

One row is one answer: kind of provider, status, body as it comes, headers, and the class it has. `scope`, `delay_s` and
`never_fits` are told where the reference tells them.
"""

from __future__ import annotations

from calendar import timegm
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.types import ErrorClass, Phase

WALL = float(timegm((2026, 11, 20, 12, 0, 0)))
HALF_AN_HOUR = 1800.0
UNTIL_MIDNIGHT = 12 * 3600.0
UNTIL_8 = 20 * 3600.0

E = ErrorClass
RL_REQ, RL_TOK, QUOTA, OVER, SRV = (
    E.RATE_LIMIT_REQUESTS,
    E.RATE_LIMIT_TOKENS,
    E.QUOTA_EXHAUSTED,
    E.OVERLOADED,
    E.SERVER_ERROR,
)
TO, CONN, BAD, CTX, POL = E.TIMEOUT, E.CONNECTION, E.BAD_REQUEST, E.CONTEXT_LENGTH_EXCEEDED, E.CONTENT_POLICY
GONE = E.MODEL_NOT_FOUND
AUTH, PERM, NF, BIG, CONF = E.AUTH, E.PERMISSION, E.NOT_FOUND, E.PAYLOAD_TOO_LARGE, E.CONFLICT
MAL, CUT = E.MALFORMED_RESPONSE, E.STREAM_INTERRUPTED


NO_ENTITY = "Some requested entity was not found"


@dataclass(frozen=True)
class Row:
    """One answer and its meaning; None: the reference does not say."""

    kind: str
    status: int
    body: bytes
    error_class: ErrorClass
    headers: tuple[tuple[bytes, bytes], ...] = ()
    scope: str | None = None
    delay_s: float | None = None
    never_fits: bool = False
    phase: Phase = Phase.ANSWERED


def told(kind: str, status: int, body: Any, error_class: ErrorClass, headers: str = "", **more: Any) -> Row:
    """A row; the body is JSON or a text, headers are `name: value` lines."""
    pairs = [line.partition(": ") for line in headers.splitlines()]
    raw = body.encode() if isinstance(body, str) else orjson.dumps(body)
    return Row(kind, status, raw, error_class, tuple((n.encode(), v.encode()) for n, _, v in pairs), **more)


def openai(message: str = "m", type: str | None = None, code: Any = None, **more: Any) -> dict[str, Any]:
    """OpenAI's shape, which most others have too."""
    return {"error": {"message": message, "type": type, "param": None, "code": code, **more}}


def anthropic(type: str, message: str = "m", **more: Any) -> dict[str, Any]:
    """Anthropic's shape."""
    return {"type": "error", "error": {"type": type, "message": message, **more}, "request_id": "req_1"}


def google(code: int, status: str, message: str = "m", *details: Any) -> dict[str, Any]:
    """Google's shape, with the details of google.rpc."""
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def violation(quota_id: str) -> dict[str, Any]:
    """Google's detail that names the quota."""
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota_id}]}


def retry_info(delay: str) -> dict[str, Any]:
    """Google's detail that names the delay."""
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}


def openrouter(code: int, message: str = "m", **metadata: Any) -> dict[str, Any]:
    """OpenRouter's shape."""
    return {"error": {"code": code, "message": message, "metadata": metadata}, "user_id": "u"}


def finished(reason: str) -> dict[str, Any]:
    """An answer that ended for this reason."""
    return {"choices": [{"message": {"content": ""}, "finish_reason": reason}]}


BY_STATUS = {
    **dict.fromkeys((400, 405, 415, 422, 501, 418), BAD),
    401: AUTH,
    402: QUOTA,
    403: PERM,
    404: NF,
    410: NF,
    408: TO,
    409: CONF,
    413: BIG,
    425: RL_REQ,
    429: RL_REQ,
    424: SRV,
    498: OVER,
    499: CONN,
    500: SRV,
    502: SRV,
    503: OVER,
    529: OVER,
    504: TO,
    520: SRV,
    **dict.fromkeys((521, 522, 523, 525, 526), CONN),
    524: SRV,
    302: E.UNKNOWN,
}

QUOTA_WORDS = [
    "insufficient_quota",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
    "billing_not_active",
    "billing_hard_limit_reached",
    "enforced_spend_limit_reached",
    "You have reached your specified API usage limits.",
    "You have reached your specified workspace API usage limits.",
    "Your credit balance is too low",
    "Insufficient Balance",
    "insufficient credits",
    "Insufficient funds",
    "Your team has either used all available credits or reached its monthly spending limit.",
    "Your prepayment credits are depleted",
]
DAILY_WORDS = ["Limit 200 per day", "GenerateRequestsPerDayPerProject", "on tokens per day", "(RPD)", "(TPD)"]
CONTEXT_WORDS = [
    "context_length_exceeded",
    "Context length exceeded",
    "prompt is too long",
    "prompt too long",
    "Input is too long for requested model.",
    "Your input exceeds the context window of this model.",
    "This model's maximum context length is 8192 tokens.",
    "maximum context length of 8,192 tokens",
    "The maximum model length is 4096",
    "The input token count (5000) exceeds the maximum number of tokens allowed (4096).",
    "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
    "Please reduce the length of the messages or completion.",
    "exceeds the maximum allowed input length of 131,072 tokens",
    "Input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "Input (9000 tokens) is longer than the models context length",
    "the request exceeds the available context size",
    "exceed_context_size_error",
    "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000",
    "tokens to keep from the initial prompt is greater than the context length",
    "context window exceeds limit",
    "Your request exceeded model token limit: 8192",
    "Prompt contains 9000 tokens, too large for model with 8192 maximum context length",
    "prompt too long; exceeded max context length by 4 tokens",
    "Range of input length should be [1, 30720]",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081",
    "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 1000 `max_new_tokens`",
    "Input tokens exceed the configured limit of 272000 tokens.",
    "model_context_window_exceeded",
]

TPM = (
    "Rate limit reached for gpt-4o-mini in organization org-x on tokens per min (TPM): Limit 200000, Used 195869, "
    "Requested 4412. Please try again in 84ms."
)
TOO_LARGE = (
    "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 41000. The input must be reduced."
)
AZURE_TOKENS = (
    "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded token rate "
    "limit of your current OpenAI S0 pricing tier. Please retry after 6 seconds. See https://aka.ms/oai/quotaincrease"
)
AZURE_FILTERED = {
    "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy...",
    "type": None,
    "param": "prompt",
    "code": "content_filter",
    "status": 400,
    "innererror": {
        "code": "ResponsibleAIPolicyViolation",
        "content_filter_result": {"jailbreak": {"filtered": True, "detected": True}},
    },
}
REGAIN = "You will regain access on 2026-12-01 at 00:00 UTC."
REGAIN_S = 10 * 86_400 + UNTIL_MIDNIGHT
XAI_SPENT = "Your team t has either used all available credits or reached its monthly spending limit."
FREE_DAY = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"
TGI_LONG = "`inputs` tokens + `max_new_tokens` must be <= 4096."
GEMINI_QUOTA = "You exceeded your current quota, please check your plan and billing details."

REFUSED_CREDENTIALS = {
    "API key not valid. Please pass a valid API key.": (400,),  # Gemini
    "API key expired. Please renew the API key.": (400,),
    "Your API key was reported as leaked. Please use another API key.": (403,),
    "Method doesn't allow unregistered callers (callers without established identity).": (403,),
    "Incorrect API key provided: na***ys. You can obtain an API key from https://console.x.ai.": (400, 403),  # xAI
    "Invalid API key": (400, 403),
    "Invalid API-key provided.": (400,),  # DashScope
    "invalid x-api-key": (400, 403),  # Anthropic
    "invalid api token": (403,),  # Cohere
    "Invalid access token.": (403,),  # Databricks
    "Access denied due to invalid subscription key or wrong API endpoint.": (403,),  # Azure
    "Key based authentication is disabled for this resource.": (403,),
    "The security token included in the request is invalid.": (400, 403),  # AWS
    "The security token included in the request is expired": (403,),
}
"""What providers say when they refuse a credential, and the statuses other than 401 that it comes with."""

DEFAULT_ROWS = [
    *(
        told(kind, status, openai(words), AUTH, scope="key")
        for words, statuses in REFUSED_CREDENTIALS.items()
        for status in statuses
        for kind in ("other", "openai", "gemini", "vertex", "bedrock", "azure", "anthropic", "xai")
    ),
    *(told("other", status, openai("m", None, "invalid_api_key"), AUTH, scope="key") for status in (400, 403)),
    *(told("other", status, anthropic("authentication_error"), AUTH, scope="key") for status in (400, 403)),
    *(
        told("gemini", 403, google(403, "PERMISSION_DENIED", "m", {"reason": reason}), AUTH, scope="key")
        for reason in ("API_KEY_SERVICE_BLOCKED", "API_KEY_IP_ADDRESS_BLOCKED", "CONSUMER_SUSPENDED")
    ),
    told("gemini", 400, google(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."), AUTH),
    told("azure", 403, openai("m", None, "AuthenticationTypeDisabled"), AUTH, scope="key"),
    # The words of a request, repeated, are no news of the credential.
    told("other", 400, openai("Unrecognized request argument supplied: invalid api key"), BAD),
    told("other", 400, openai("tools.0.invalid api key: Extra inputs are not permitted"), BAD),
    told("other", 400, openai("Unknown name \"api key not valid\" at 'tools[0]': Cannot find field."), BAD),
    told("other", 403, openai("You have insufficient permissions. Missing scopes: model.request"), PERM),
    *(told("other", status, "", error_class) for status, error_class in BY_STATUS.items()),
    told("other", 502, "<html><h1>502 Bad Gateway</h1>cloudflare</html>", SRV),
    told("other", 200, openai("m", "authentication_error", None), AUTH, scope="key"),
    told("other", 200, '{"choices": [', MAL),
    told("other", 200, {"choices": []}, MAL),
    told("other", 200, 'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', CUT, phase=Phase.STREAMING),
    *(told("other", 429, openai(words), QUOTA, scope="key", delay_s=HALF_AN_HOUR) for words in QUOTA_WORDS),
    *(told("other", 400, openai("m", None, words), QUOTA) for words in QUOTA_WORDS[:3]),
    *(told("other", 429, openai(words), QUOTA, scope="target", delay_s=UNTIL_MIDNIGHT) for words in DAILY_WORDS),
    told("other", 429, openai("Over 60 requests per minute or 1000 per day"), RL_REQ),
    told("other", 429, openai("quota", None, "429"), RL_REQ),
    told("other", 429, openai(GEMINI_QUOTA), RL_REQ),
    *(told("other", 400, openai(words), CTX) for words in CONTEXT_WORDS),
    *(told("other", 429, openai(words), RL_REQ) for words in CONTEXT_WORDS[:2]),
    told("other", 400, openai("Rate limit: the prompt is too long"), BAD),
    told("other", 400, openai("too many requests; prompt is too long"), BAD),
    told("other", 400, openai("context_length_exceeded", None, "string_above_max_length"), BAD),
    told("other", 400, openai("Throttling error: Too many tokens, please wait"), BAD),
    told("other", 429, openai(TOO_LARGE, "tokens", "rate_limit_exceeded"), RL_TOK, never_fits=True),
    told("other", 413, openai(TOO_LARGE, "tokens", "rate_limit_exceeded"), RL_TOK, never_fits=True),
    told("other", 429, openai(TPM), RL_TOK, delay_s=0.084),
    # Delays, by their order of precedence, and the forms of resets.
    told("other", 429, "", RL_REQ, "retry-after-ms: 1500\nretry-after: 9", delay_s=1.5),
    told("other", 429, openai("try again in 7s"), RL_REQ, "retry-after: 2.5", delay_s=2.5),
    told("other", 503, "", OVER, "retry-after: Fri, 20 Nov 2026 12:00:10 GMT", delay_s=10),
    told("other", 429, google(429, "x", "m", retry_info("34.07s")), RL_REQ, delay_s=34.07),
    told("other", 429, openai("Please try again in 1h2m3.5s"), RL_REQ, delay_s=3723.5),
    told("other", 429, openai("retry after 12 seconds"), RL_REQ, delay_s=12),
    *(
        told(
            "other",
            429,
            "",
            RL_REQ,
            f"x-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: {reset}",
            delay_s=s,
        )
        for reset, s in (
            ("6m0s", 360),
            ("2m59.56s", 179.56),
            ("120ms", 0.12),
            ("40", 40),
            ("2026-11-20T12:00:05Z", 5),
            (str(int(WALL) + 30), 30),
            (str((int(WALL) + 30) * 1000), 30),
        )
    ),
]

OPENAI_ROWS = [
    told("openai", 400, openai("m", "invalid_request_error", "context_length_exceeded"), CTX),
    told("openai", 400, openai("m", "invalid_request_error", "content_policy_violation"), POL),
    told("openai", 400, openai("flagged as potentially violating our usage policy", None, "invalid_prompt"), POL),
    told("openai", 400, openai("m", "image_generation_user_error", "moderation_blocked"), POL),
    told("openai", 400, openai("m", "image_generation_user_error"), POL),
    *(
        told("openai", 400, openai("m", "invalid_request_error", code), BAD)
        for code in (
            "invalid_value",
            "unsupported_parameter",
            "decimal_above_max_value",
            "string_above_max_length",
            "invalid_image_url",
        )
    ),
    told("openai", 400, openai("service_tier is not allowed", "invalid_request_error"), BAD),
    told("openai", 401, openai("Incorrect API key", "invalid_request_error", "invalid_api_key"), AUTH, scope="key"),
    told("openai", 401, openai("You must be a member of an organization to use the API"), AUTH, scope="key"),
    told("openai", 401, openai("Your IP is not authorized"), AUTH, scope="account"),
    told("openai", 403, openai("m", None, "unsupported_country_region_territory"), PERM, scope="account"),
    told("openai", 403, openai("Project does not have access to model"), PERM),
    told("openai", 404, openai("m", "invalid_request_error", "model_not_found"), GONE),
    told("openai", 404, openai("The model `gpt-9` does not exist or you do not have access to it."), GONE),
    told("openai", 404, openai("No such File object: file-1", "invalid_request_error"), NF),
    told("openai", 404, openai("Item 'the model x does not exist' not found.", "invalid_request_error"), NF),
    told("openai", 403, openai("Project `p` does not have access to model `x`", None, "model_not_found"), PERM),
    told("openai", 200, openai("m", "invalid_request_error", "model_not_found"), GONE),
    told("openai", 404, "<html>404 Not Found</html>", NF),
    told("openai", 409, openai(), CONF),
    told("openai", 413, openai(), BIG),
    told("openai", 422, openai(), BAD),
    told("openai", 429, openai("m", "requests", "rate_limit_exceeded"), RL_REQ),
    told("openai", 429, openai(TPM, "tokens", "rate_limit_exceeded"), RL_TOK, scope="target", delay_s=0.084),
    told("openai", 429, openai("m", "rate_limit_error", "slow_down"), RL_REQ),
    told("openai", 503, openai("m", None, "slow_down"), RL_REQ),
    *(
        told("openai", 429, openai("m", type_, code), QUOTA, scope="key", delay_s=HALF_AN_HOUR)
        for type_ in ("insufficient_quota", "tokens", "requests", None)
        for code in QUOTA_WORDS[:5]
    ),
    told("openai", 429, openai("You exceeded your current quota"), QUOTA, scope="key"),
    told("openai", 429, openai("on requests per day (RPD): Limit 200. Please try again in 7m12s"), QUOTA, delay_s=432),
    told("openai", 429, openai("on tokens per day (TPD): Limit 1, Requested 1", "tokens"), QUOTA),
    told("openai", 500, openai("m", "server_error"), SRV),
    told("openai", 503, openai("m", "service_unavailable_error", "server_is_overloaded"), OVER),
    told("openai", 503, "", OVER, "retry-after: 3", delay_s=3),
    told("openai", 200, openai("m", "requests", "rate_limit_exceeded"), RL_REQ),
    told("openai", 200, finished("content_filter"), POL),
    told("openai", 200, {"choices": [{"message": {"refusal": "I cannot"}, "finish_reason": "stop"}]}, POL),
    told("openai", 200, {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, POL),
    *(
        told("openai", 200, {"type": "response.failed", "response": {"error": {"code": code, "message": "m"}}}, kind)
        for code, kind in (
            ("server_error", SRV),
            ("rate_limit_exceeded", RL_TOK),
            ("invalid_prompt", POL),
            ("bio_policy", POL),
            ("misalignment_policy_violation", POL),
            ("data_residency_mismatch", BAD),
            ("vector_store_timeout", BAD),
            ("image_too_large", BAD),
            ("invalid_image_format", BAD),
        )
    ),
    told(
        "openai",
        200,
        'data: {"error":{"message":"m","type":"server_error","code":null}}\n\n',
        SRV,
        phase=Phase.STREAMING,
    ),
    told(
        "openai",
        200,
        'event: error\ndata: {"type":"error","code":"server_is_overloaded","message":"m","sequence_number":3}\n\n',
        OVER,
        phase=Phase.STREAMING,
    ),
    told(
        "openai",
        200,
        'data: {"type":"error","sequence_number":2,"error":{"type":"service_unavailable_error",'
        '"code":"server_is_overloaded","message":"m"}}\n\ndata: [DONE]\n\n',
        OVER,
        phase=Phase.STREAMING,
    ),
]

AZURE_ROWS = [
    told("azure", 429, {"error": {"code": "429", "message": AZURE_TOKENS}}, RL_TOK, delay_s=6),
    told(
        "azure",
        429,
        {
            "error": {
                "code": "429",
                "message": "Your requests to gpt-4.1-nano have exceeded the token rate limit of quota",
            }
        },
        RL_TOK,
    ),
    told("azure", 401, {"statusCode": 401, "message": "Access denied due to invalid subscription key"}, AUTH),
    told("azure", 500, {"error": {"code": "InternalServerError", "message": "m"}}, SRV),
    told("azure", 429, {"error": {"code": "429", "message": "Rate limit is exceeded."}}, RL_TOK),
    told("azure", 429, {"error": {"code": "429", "message": "Requests have been limited."}}, RL_TOK),
    told("azure", 429, {"error": {"code": "429", "message": "have exceeded call rate limit; quotaincrease"}}, RL_REQ),
    told("azure", 429, openai("System is experiencing high demand"), OVER),
    told("azure", 503, openai("System is currently experiencing high demand"), OVER),
    told("azure", 429, openai("temporarily unable to process your request"), OVER),
    told("azure", 429, openai("Please retry after 86400 seconds."), QUOTA, scope="account", delay_s=86_400),
    told("azure", 400, {"error": AZURE_FILTERED}, POL),
    told("azure", 200, finished("content_filter"), POL),
    told("azure", 401, openai(), AUTH),
    told("azure", 403, openai("blocked by virtual network"), PERM),
    told("azure", 404, {"error": {"code": "DeploymentNotFound", "message": "m"}}, GONE),
    told("azure", 404, {"error": {"code": "404", "message": "Resource not found"}}, NF),
    told("azure", 408, "", TO),
    told("azure", 424, openai(), SRV),
    told("azure", 503, openai(), OVER),
    told("azure", 400, openai("m", None, "context_length_exceeded"), CTX),
    told("azure", 429, "", RL_TOK, "policy-id: DeploymentRatelimit-Token\nx-rate-limit-reset-tokens: 55", delay_s=55),
    told("azure", 429, "", RL_REQ, "policy-id: DeploymentRatelimit-Call"),
    told("azure", 429, "", RL_REQ, "x-ratelimit-limit-tokens: -1\nx-ratelimit-remaining-tokens: 0"),
]

ANTHROPIC_ROWS = [
    told("anthropic", 400, anthropic("invalid_request_error"), BAD),
    told("anthropic", 401, anthropic("authentication_error"), AUTH, scope="key"),
    told("anthropic", 402, anthropic("billing_error"), QUOTA, scope="key"),
    told("anthropic", 403, anthropic("permission_error"), PERM),
    told("anthropic", 404, anthropic("not_found_error"), NF),
    told("anthropic", 404, anthropic("not_found_error", "model: claude-2.1"), GONE),
    told("anthropic", 409, anthropic("conflict_error"), CONF),
    told("anthropic", 413, anthropic("request_too_large"), BIG),
    told("anthropic", 413, "<html>413 Payload Too Large</html>", BIG),
    told("anthropic", 429, anthropic("rate_limit_error"), RL_REQ, "retry-after: 12", delay_s=12),
    told("anthropic", 429, anthropic("rate_limit_error", "limit of 50 requests per minute"), RL_REQ),
    told("anthropic", 429, anthropic("rate_limit_error", "limit of 30,000 input tokens per minute"), RL_TOK),
    told("anthropic", 429, anthropic("rate_limit_error", "limit of 8,000 output tokens per minute"), RL_TOK),
    told("anthropic", 429, anthropic("rate_limit_error", "acceleration limit: input tokens per minute"), RL_REQ),
    told("anthropic", 500, anthropic("api_error"), SRV),
    told("anthropic", 504, anthropic("timeout_error"), TO),
    told("anthropic", 529, anthropic("overloaded_error", "Overloaded"), OVER),
    told("anthropic", 529, "", OVER),
    told("anthropic", 503, "", OVER),
    told(
        "anthropic",
        429,
        anthropic("rate_limit_error", REGAIN, details={"error_code": "enforced_spend_limit_reached"}),
        QUOTA,
        scope="key",
        delay_s=REGAIN_S,
    ),
    told(
        "anthropic",
        400,
        anthropic("invalid_request_error", f"You have reached your specified API usage limits. {REGAIN}"),
        QUOTA,
        scope="key",
        delay_s=REGAIN_S,
    ),
    told(
        "anthropic", 400, anthropic("x", f"You have reached your specified workspace API usage limits. {REGAIN}"), QUOTA
    ),
    told("anthropic", 400, anthropic("x", "Your credit balance is too low to access the Anthropic API"), QUOTA),
    told("anthropic", 402, anthropic("x", "Your credit balance is too low"), QUOTA),
    told("anthropic", 400, anthropic("x", "prompt is too long: 205351 tokens > 200000 maximum"), CTX),
    told("anthropic", 400, anthropic("x", "input length and `max_tokens` exceed context limit: 1 + 2 > 3"), CTX),
    told("anthropic", 200, {"stop_reason": "model_context_window_exceeded"}, CTX),
    told("anthropic", 200, {"stop_reason": "refusal"}, POL),
    told("anthropic", 400, anthropic("invalid_request_error", "Output blocked by content filtering policy"), POL),
    told(
        "anthropic",
        200,
        'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"r"}\n\n',
        OVER,
        phase=Phase.STREAMING,
    ),
    told("anthropic", 400, openai("m", "invalid_request_error"), BAD),
    told("anthropic", 529, openai("m", "overloaded_error"), OVER),
]

GEMINI_ROWS = [
    told(
        "gemini",
        429,
        [google(429, "RESOURCE_EXHAUSTED", GEMINI_QUOTA, violation(FREE_DAY), retry_info("20s"))],
        QUOTA,
        scope="target",
        delay_s=HALF_AN_HOUR,
    ),
    told("gemini", 429, google(429, "RESOURCE_EXHAUSTED", "m", violation(FREE_DAY)), QUOTA, delay_s=UNTIL_8),
    told("gemini", 429, google(429, "X", "m", violation(FREE_DAY), retry_info("36000s")), QUOTA, delay_s=36_000),
    told("gemini", 400, google(400, "INVALID_ARGUMENT"), BAD),
    told(
        "gemini",
        400,
        google(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
        AUTH,
        scope="key",
    ),
    told(
        "gemini",
        400,
        google(400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
        CTX,
    ),
    told("gemini", 400, google(400, "FAILED_PRECONDITION"), PERM, scope="account"),
    told("gemini", 402, google(402, "RESOURCE_EXHAUSTED"), QUOTA),
    told(
        "gemini", 429, [google(429, "RESOURCE_EXHAUSTED", "Your prepayment credits are depleted")], QUOTA, scope="key"
    ),
    told("gemini", 403, google(403, "PERMISSION_DENIED"), PERM),
    told("gemini", 404, google(404, "NOT_FOUND"), NF),
    told("gemini", 404, google(404, "NOT_FOUND", "models/g is not found for API version v1beta, or is not"), GONE),
    told("gemini", 404, google(404, "NOT_FOUND", "This model models/g is no longer available to new users."), GONE),
    told("gemini", 429, google(429, "RESOURCE_EXHAUSTED"), RL_REQ),
    told("gemini", 499, google(499, "CANCELLED"), CONN),
    told("gemini", 500, google(500, "INTERNAL"), SRV),
    told("gemini", 503, google(503, "UNAVAILABLE"), OVER),
    told("gemini", 504, google(504, "DEADLINE_EXCEEDED"), TO),
    told(
        "gemini",
        429,
        google(429, "X", GEMINI_QUOTA, violation("GenerateRequestsPerMinutePerProjectPerModel"), retry_info("34.07s")),
        RL_REQ,
        delay_s=34.07,
    ),
    told(
        "gemini", 429, google(429, "X", GEMINI_QUOTA, violation("GenerateContentInputTokensPerModelPerMinute")), RL_TOK
    ),
    told("gemini", 429, google(429, "X", "Quota exceeded, limit: 0, model: m", violation(FREE_DAY)), PERM),
    told("gemini", 429, google(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota)."), OVER),
    told("gemini", 429, google(429, "X", "m", {"reason": "MODEL_CAPACITY_EXHAUSTED"}), OVER),
    *(
        told("gemini", status, {"error": {"code": code, "message": "m"}}, error_class)
        for status, code, error_class in (
            (429, "rate_limit_exceeded", RL_REQ),
            (429, "quota_exceeded", QUOTA),
            (429, "too_many_requests", RL_REQ),
            (402, "payment_required", QUOTA),
            (503, "service_unavailable", OVER),
        )
    ),
    *(
        told("gemini", 200, {"promptFeedback": {"blockReason": reason}}, POL)
        for reason in ("SAFETY", "BLOCKLIST", "PROHIBITED_CONTENT", "OTHER")
    ),
    *(
        told("gemini", 200, {"candidates": [{"finishReason": reason}]}, POL)
        for reason in ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY")
    ),
    told("gemini", 200, {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]}, MAL),
    told(
        "gemini",
        200,
        'data: {"candidates":[]}\n\n{\n  "error": {\n    "code": 503,\n    "status": "UNAVAILABLE"\n  }\n}\n',
        OVER,
        phase=Phase.STREAMING,
    ),
    told("gemini", 200, 'data: {"error":{"code":503,"status":"UNAVAILABLE"}}\n\n', OVER, phase=Phase.STREAMING),
    told("gemini", 200, '[{\n  "error": {\n    "code": 429\n  }\n}\n]', RL_REQ, phase=Phase.STREAMING),
]

VERTEX_ROWS = [
    told(
        "vertex", 429, google(429, "RESOURCE_EXHAUSTED", "Resource exhausted, please try again later."), OVER, delay_s=1
    ),
    told("vertex", 404, google(404, "NOT_FOUND", "Publisher Model `projects/p/x` was not found or your project"), GONE),
    told("vertex", 429, openai("Too many requests. Exceeded the Provisioned Throughput."), RL_TOK),
    told("vertex", 429, openai("Quota exceeded for aiplatform.googleapis.com/generate_content_requests"), RL_REQ),
    told("vertex", 429, openai("Quota exceeded for aiplatform.googleapis.com/online_prediction_input_tokens"), RL_TOK),
    told("vertex", 401, google(401, "UNAUTHENTICATED"), AUTH),
    told("vertex", 400, google(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."), AUTH),
    told("gemini", 400, google(400, "INVALID_ARGUMENT", "API key expired. Please renew the API key."), AUTH),
    told("vertex", 503, google(503, "UNAVAILABLE"), OVER),
    told("vertex", 400, google(400, "FAILED_PRECONDITION"), PERM, scope="target"),
    told(
        "vertex",
        400,
        google(400, "INVALID_ARGUMENT", "the input token count is 9 but the model only supports up to 8."),
        CTX,
    ),
    told("vertex", 200, {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]}, MAL),
    told("vertex", 200, {"error": {"message": "it gave up (OTHER): validation", "code": "malformed_response"}}, MAL),
    told("vertex", 529, anthropic("overloaded_error"), OVER),
]

CAPACITY = {
    "object": "error",
    "message": "Service tier capacity exceeded for this model.",
    "type": "service_tier_capacity_exceeded",
    "param": None,
    "code": "3505",
}
MISTRAL_LONG = "Prompt contains 9000 tokens and 0 draft tokens, too large for model with 8192 maximum context length"
MISTRAL_ROWS = [
    told(
        "mistral",
        400,
        {"object": "error", "message": "Invalid model: x", "type": "invalid_model", "code": "1500"},
        GONE,
    ),
    told("mistral", 422, {"detail": [{"loc": ["body"], "msg": "field required", "type": "missing"}]}, BAD),
    told("mistral", 401, {"detail": "Unauthorized"}, AUTH),
    told("mistral", 401, {"message": "Unauthorized", "request_id": "r"}, AUTH),
    told("mistral", 429, CAPACITY, RL_REQ),
    told("mistral", 429, {**CAPACITY, "type": "invalid_request_error", "code": None}, RL_REQ),
    told("mistral", 429, {"message": "Requests rate limit exceeded"}, RL_REQ),
    told("mistral", 429, {"message": "Tokens rate limit exceeded"}, RL_TOK, "ratelimitbysize-reset: 40", delay_s=40),
    told("mistral", 402, "", QUOTA),
    told("mistral", 400, {"object": "error", "message": MISTRAL_LONG, "type": "invalid_request_error"}, CTX),
    *(told("mistral", status, "", kind) for status, kind in ((500, SRV), (502, SRV), (503, OVER), (504, TO))),
    told("mistral", 200, finished("content_filter"), POL),
    told("mistral", 200, finished("error"), SRV),
    told(
        "mistral", 200, 'data: {"object":"error","message":"m","type":"server_error"}\n\n', SRV, phase=Phase.STREAMING
    ),
]

GROQ_ROWS = [
    told("groq", 400, openai("m", "invalid_request_error", "context_length_exceeded"), CTX),
    told("groq", 400, openai("Please reduce the length of the messages or completion."), CTX),
    told("groq", 400, openai("m", "invalid_request_error", "json_validate_failed", failed_generation="{"), MAL),
    told("groq", 400, openai("m", "invalid_request_error", "tool_use_failed", failed_generation="{"), MAL),
    told("groq", 401, openai("m", "invalid_request_error", "invalid_api_key"), AUTH),
    told("groq", 403, openai(), PERM),
    told("groq", 404, openai("m", None, "model_not_found"), GONE),
    told("groq", 400, openai("m", "invalid_request_error", "model_decommissioned"), GONE),
    told("groq", 413, openai(TOO_LARGE, "tokens", "rate_limit_exceeded"), RL_TOK, never_fits=True),
    told("groq", 422, openai(), BAD),
    told("groq", 424, openai(), SRV),
    told(
        "groq",
        429,
        openai("on requests per minute (RPM). Please try again in 5.289s", "requests"),
        RL_REQ,
        delay_s=5.289,
    ),
    told("groq", 429, openai("on tokens per minute (TPM)", "tokens"), RL_TOK),
    told("groq", 429, openai("on seconds of audio per hour (ASH)", "seconds"), RL_REQ),
    told("groq", 429, openai("on requests per day (RPD)", "requests"), QUOTA, "retry-after: 7200", delay_s=7200),
    told("groq", 429, openai("on tokens per day (TPD)", "tokens"), QUOTA),
    told("groq", 498, openai("m", None, "capacity_exceeded"), OVER),
    told("groq", 499, openai(), CONN),
    told("groq", 500, openai(), SRV),
    told("groq", 502, openai(), SRV),
    told("groq", 503, openai(), OVER),
    told("groq", 400, openai("m", None, "blocked_api_access"), QUOTA, scope="key"),
    told("groq", 403, openai("m", None, "blocked_api_access"), QUOTA, scope="key"),
    told("groq", 200, 'data: {"error":{"message":"m","type":"server_error"}}\n\n', SRV, phase=Phase.STREAMING),
    told("groq", 200, 'data: {"x_groq":{"error":"over capacity"}}\n\n', SRV, phase=Phase.STREAMING),
]

TOGETHER_LONG = "Input (9000 tokens) is longer than the model's context length (8192 tokens)."
TOGETHER_ROWS = [
    told("together", 400, openai(), BAD),
    told("together", 422, openai(), BAD),
    told("together", 400, openai(TOGETHER_LONG), CTX),
    told("together", 422, openai(TGI_LONG), CTX),
    told("together", 401, openai(), AUTH),
    told("together", 402, openai(), QUOTA, scope="key"),
    told("together", 403, openai("input token count + max_tokens must be less than 4097"), CTX),
    told("together", 403, openai(), PERM),
    told("together", 404, openai(), NF),
    told("together", 404, openai("Unable to access model x.", "invalid_request_error", "model_not_available"), GONE),
    told("together", 429, openai(), RL_REQ),
    *(told("together", s, openai(), k) for s, k in ((503, OVER), (500, SRV), (504, TO), (524, SRV), (529, OVER))),
]

FIREWORKS_ROWS = [
    told("fireworks", 404, openai("Model not found, inaccessible, and/or not deployed", None, "NOT_FOUND"), GONE),
    told("fireworks", 400, {"error": {"object": "error", "type": "invalid_request_error", "message": "m"}}, BAD),
    told("fireworks", 400, openai("The prompt is too long: 9000"), CTX),
    told("fireworks", 400, openai("maximum context length is 8192"), CTX),
    *(
        told("fireworks", status, openai(), kind)
        for status, kind in (
            (401, AUTH),
            (402, QUOTA),
            (403, PERM),
            (404, NF),
            (405, BAD),
            (408, TO),
            (413, BIG),
            (429, RL_TOK),
            (500, SRV),
            (502, SRV),
            (504, TO),
        )
    ),
    told("fireworks", 412, openai("Account x is suspended, possibly due to reaching the spending limit"), QUOTA),
    told("fireworks", 412, openai("Failed to load LoRA adapter"), SRV),
    told("fireworks", 503, openai("Service Overloaded"), OVER),
]

DEEPSEEK_ROWS = [
    told("deepseek", 400, openai("m", "invalid_request_error"), BAD),
    told("deepseek", 400, openai("Model Not Exist", "invalid_request_error", "invalid_request_error"), GONE),
    told("deepseek", 400, openai("This model's maximum context length is 65536 tokens."), CTX),
    told("deepseek", 401, openai(), AUTH),
    told("deepseek", 402, openai("Insufficient Balance"), QUOTA, scope="key", delay_s=HALF_AN_HOUR),
    told("deepseek", 422, openai(), BAD),
    told("deepseek", 429, openai("Too many concurrent requests"), RL_REQ),
    told("deepseek", 500, openai(), SRV),
    told("deepseek", 503, openai(), OVER),
    told("deepseek", 200, finished("content_filter"), POL),
    told("deepseek", 200, finished("insufficient_system_resource"), OVER),
]

XAI_LONG = "This model's maximum prompt length is 131072 but the request contains 140000 tokens."
XAI_ROWS = [
    told("xai", 429, {"code": "Some resource has been exhausted", "error": XAI_SPENT}, QUOTA, scope="key"),
    told("xai", 403, {"code": "The caller does not have permission", "error": XAI_SPENT}, QUOTA, scope="key"),
    told("xai", 403, {"code": "permission-denied", "error": XAI_SPENT}, QUOTA),
    *(
        told("xai", status, {"code": "x", "error": "The service is temporarily at capacity"}, OVER)
        for status in (422, 429, 503)
    ),
    told("xai", 400, {"code": "Client specified an invalid argument", "error": "Incorrect API key provided"}, AUTH),
    told("xai", 401, "", AUTH),
    told("xai", 403, {"code": "x", "error": "Team is blocked"}, PERM),
    told("xai", 403, {"code": "x", "error": "Content violates usage guidelines."}, POL),
    told("xai", 404, "", NF),
    told("xai", 404, {"code": NO_ENTITY, "error": "The model grok-x does not exist or your team has no access"}, GONE),
    told("xai", 404, {"code": NO_ENTITY, "error": "No handler found on route."}, NF),
    told("xai", 415, "", BAD),
    told("xai", 422, {"code": "x", "error": "m"}, BAD),
    told("xai", 429, {"code": "Some resource has been exhausted", "error": "Too many requests for team"}, RL_REQ),
    told("xai", 400, {"code": "x", "error": XAI_LONG}, CTX),
    told("xai", 400, openai(XAI_LONG), CTX),
]

COHERE_LONG = "too many tokens: total number of tokens in the prompt cannot exceed 4081"
COHERE_TRIAL = "trial token rate limit exceeded, limit is 100000 tokens per minute"
COHERE_ROWS = [
    told("cohere", 400, {"id": "i", "message": "m"}, BAD),
    told("cohere", 400, {"id": "i", "message": COHERE_LONG}, CTX),
    told("cohere", 401, {"message": "invalid api token"}, AUTH),
    told("cohere", 402, {"message": "m"}, QUOTA),
    told("cohere", 404, {"message": "m"}, NF),
    told("cohere", 404, {"message": "model 'x' not found, make sure the correct model ID was used"}, GONE),
    told("cohere", 422, {"message": "m"}, BAD),
    told("cohere", 429, {"message": "You are past the per minute request limit"}, RL_REQ),
    told("cohere", 429, {"message": "Trial key, which is limited to 40 API calls / minute"}, RL_REQ),
    told("cohere", 429, {"message": COHERE_TRIAL}, RL_TOK),
    told("cohere", 429, {"message": "Trial key, which is limited to 1000 API calls / month"}, QUOTA, scope="key"),
    told("cohere", 498, {"message": "blocked output"}, POL),
    told("cohere", 499, {"message": "m"}, CONN),
    told("cohere", 500, {"message": "m"}, SRV),
    told("cohere", 503, {"message": "m"}, OVER),
    told("cohere", 200, {"finish_reason": "ERROR_TOXIC"}, POL),
    told("cohere", 200, {"finish_reason": "ERROR"}, SRV),
    told("cohere", 200, {"finish_reason": "ERROR_LIMIT"}, CTX),
]

RESETS_AT = "2026-11-21T00:00:00Z"
OPENROUTER_ROWS = [
    told("openrouter", 400, {"error": {"message": "x/y is not a valid model ID", "code": 400}}, GONE),
    told("openrouter", 404, {"error": {"message": "No endpoints found for x/y.", "code": 404}}, GONE),
    told("openrouter", 404, {"error": {"message": "No endpoints found that support tool use.", "code": 404}}, NF),
    *(
        told("openrouter", 400, openrouter(400, error_type=error_type), error_class)
        for error_type, error_class in (
            ("context_length_exceeded", CTX),
            ("max_tokens_exceeded", BAD),
            ("token_limit_exceeded", BAD),
            ("string_too_long", BAD),
            ("invalid_request", BAD),
            ("invalid_prompt", BAD),
            ("unprocessable", BAD),
            ("invalid_image", BAD),
            ("authentication", AUTH),
            ("permission_denied", PERM),
            ("payment_required", QUOTA),
            ("rate_limit_exceeded", RL_REQ),
            ("provider_overloaded", OVER),
            ("provider_unavailable", SRV),
            ("server", SRV),
            ("unmapped", SRV),
            ("not_found", NF),
            ("precondition_failed", BAD),
            ("payload_too_large", BIG),
            ("content_policy_violation", POL),
            ("refusal", POL),
            ("timeout", TO),
        )
    ),
    told(
        "openrouter",
        402,
        openrouter(402, error_type="payment_required", limit_source="openrouter_in_flight_budget"),
        RL_REQ,
        "retry-after: 4",
        delay_s=4,
    ),
    told("openrouter", 402, openrouter(402, limit_source="weight_exceeds_budget"), RL_TOK, never_fits=True),
    told("openrouter", 402, openrouter(402, "Insufficient credits"), QUOTA, scope="key"),
    told("openrouter", 403, openrouter(403, reasons=["violence"], flagged_input="…"), POL),
    *(
        told(
            "openrouter",
            403,
            openrouter(403, "Budget limit exceeded", limit_source=source, resets_at=RESETS_AT),
            QUOTA,
            scope="key",
            delay_s=UNTIL_MIDNIGHT,
        )
        for source in ("openrouter_guardrail_budget", "openrouter_workspace_budget", "openrouter_key_limit")
    ),
    told("openrouter", 403, openrouter(403), PERM),
    told("openrouter", 408, openrouter(408), TO),
    told(
        "openrouter",
        429,
        openrouter(429, "Rate limit exceeded", headers={"X-RateLimit-Reset": str((int(WALL) + 20) * 1000)}),
        RL_REQ,
        delay_s=20,
    ),
    told(
        "openrouter", 429, openrouter(429, "Provider returned error", provider_name="x", raw="limited upstream"), RL_REQ
    ),
    told("openrouter", 429, openrouter(429, "Rate limit exceeded: free-models-per-day (per day)"), QUOTA),
    told("openrouter", 502, openrouter(502), SRV),
    told("openrouter", 503, openrouter(503), OVER, "retry-after: 5", delay_s=5),
    told(
        "openrouter",
        200,
        'data: {"error":{"code":502,"message":"m","metadata":{"error_type":"provider_overloaded"}},"choices":'
        '[{"delta":{"content":""},"finish_reason":"error"}]}\n\ndata: [DONE]\n\n',
        OVER,
        phase=Phase.STREAMING,
    ),
    told("openrouter", 200, {**openrouter(503), "choices": []}, OVER),
    told("openrouter", 200, {"choices": [{"error": {"code": 429, "message": "m"}, "finish_reason": "error"}]}, RL_REQ),
]


def bedrock(status: int, exception: str, error_class: ErrorClass, message: str = "m", **more: Any) -> Row:
    """AWS's shape: the exception's name stands in a header."""
    header = f"x-amzn-errortype: {exception}:http://internal.amazon.com/"
    return told("bedrock", status, {"message": message}, error_class, header, **more)


BEDROCK_ROWS = [
    bedrock(400, "ValidationException", BAD),
    bedrock(400, "ValidationException", CTX, "Input is too long for requested model."),
    bedrock(400, "ValidationException", CTX, "too many input tokens"),
    bedrock(400, "ValidationException", CTX, "prompt is too long: 210000 tokens > 200000 maximum"),
    bedrock(400, "ServiceQuotaExceededException", RL_REQ),
    bedrock(400, "IncompleteSignature", AUTH, scope="key"),
    bedrock(400, "RequestExpired", AUTH),
    bedrock(403, "AccessDeniedException", PERM),
    bedrock(403, "InvalidClientTokenId", AUTH),
    bedrock(403, "UnrecognizedClientException", AUTH),
    bedrock(403, "ExpiredTokenException", AUTH),
    bedrock(403, "InvalidSignatureException", AUTH, scope="key"),
    bedrock(403, "RequestTimeTooSkewed", AUTH, scope="key"),
    bedrock(403, "MissingAuthenticationTokenException", AUTH),
    bedrock(403, "AccessDeniedException", PERM, "Access denied: the model is not for sale here."),
    bedrock(403, "ValidationException", AUTH, "Authentication failed: Please make sure your API Key is valid."),
    bedrock(
        400, "ValidationException", GONE, "Invocation of model ID x with on-demand throughput isn\u2019t supported."
    ),
    bedrock(404, "ResourceNotFoundException", NF),
    bedrock(400, "ValidationException", GONE, "The provided model identifier is invalid."),
    bedrock(404, "FTUFormNotFilled", GONE),
    bedrock(408, "ModelTimeoutException", TO),
    bedrock(424, "ModelErrorException", SRV),
    bedrock(429, "ThrottlingException", RL_REQ, "Too many requests, please wait before trying again."),
    bedrock(429, "ThrottlingException", RL_TOK, "Too many tokens, please wait before trying again."),
    bedrock(429, "ThrottlingException", QUOTA, "Too many tokens per day, please wait.", delay_s=UNTIL_MIDNIGHT),
    bedrock(429, "ModelNotReadyException", OVER),
    bedrock(500, "InternalServerException", SRV),
    bedrock(503, "ServiceUnavailableException", OVER),
    told("bedrock", 529, "", OVER),
    told("bedrock", 429, {"__type": "com.amazon.coral#ThrottlingException", "message": "m"}, RL_REQ),
    told("bedrock", 400, openai("Input is too long for requested model"), CTX),
    told("bedrock", 200, {"stopReason": "guardrail_intervened"}, POL),
    told("bedrock", 200, {"stopReason": "content_filtered"}, POL),
    told("bedrock", 200, {"stopReason": "model_context_window_exceeded"}, CTX),
    *(
        told("bedrock", 200, {"type": name, "message": "m"}, error_class, phase=Phase.STREAMING)
        for name, error_class in (
            ("internalServerException", SRV),
            ("modelStreamErrorException", SRV),
            ("modelTimeoutException", TO),
            ("serviceUnavailableException", OVER),
            ("throttlingException", RL_REQ),
            ("validationException", BAD),
        )
    ),
]

VLLM_LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"
FULL = "The request queue is full."
SELF_HOSTED_ROWS = [
    told("vllm", 400, openai("m", "BadRequestError", 400), BAD),
    told("vllm", 404, openai("m", "NotFoundError", 404), NF),
    told("vllm", 404, openai("The model `x` does not exist.", "NotFoundError", 404), GONE),
    told("vllm", 404, openai("Response with id 'the model x does not exist' not found.", "NotFoundError", 404), NF),
    told("vllm", 500, openai("m", "InternalServerError", 500), SRV),
    told("vllm", 501, openai("m", "NotImplementedError", 501), BAD),
    told("vllm", 400, {"object": "error", "message": "m", "type": "BadRequestError", "param": None, "code": 400}, BAD),
    told("vllm", 401, {"error": "Unauthorized"}, AUTH),
    told("vllm", 400, openai(VLLM_LONG, "BadRequestError", 400), CTX),
    told(
        "vllm",
        200,
        f"data: {orjson.dumps(openai(VLLM_LONG, 'BadRequestError', 400)).decode()}\n\ndata: [DONE]\n\n",
        CTX,
    ),
    told("vllm", 200, 'data: {"error":{"message":"m","type":"InternalServerError","code":500}}\n\n', SRV),
    told("sglang", 400, {"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, BAD),
    told("sglang", 503, {"object": "error", "message": FULL, "type": "x", "code": 503}, OVER),
    told("sglang", 200, openai(f"Streaming response failed: [503] {FULL}", "InternalServerError"), OVER),
    told("sglang", 200, finished("abort"), SRV),
    told("sglang", 400, openai("Requested token count exceeds the model's maximum context length of 4096 tokens"), CTX),
    told("sglang", 400, openai(TOGETHER_LONG), CTX),
    told("ollama", 500, {"error": "llama runner process has terminated"}, SRV),
    told("ollama", 200, {"error": "something went wrong"}, SRV),
    told("ollama", 400, openai("m", "invalid_request_error"), BAD),
    told("ollama", 404, openai("m", "not_found_error"), NF),
    told("ollama", 500, openai("m", "api_error"), SRV),
    told("ollama", 503, {"error": "server busy, please try again.  maximum pending requests exceeded"}, OVER),
    told("ollama", 404, {"error": 'model "x" not found, try pulling it first'}, GONE),
    told("ollama", 404, openai("model 'x' not found", "not_found_error"), GONE),
    told("ollama", 499, "", CONN),
    told("ollama", 400, {"error": "prompt too long; exceeded context length"}, CTX),
    told("llamacpp", 400, openai("m", "invalid_request_error", 400), BAD),
    told("llamacpp", 401, openai("m", "authentication_error", 401), AUTH),
    told("llamacpp", 403, openai("m", "permission_error", 403), PERM),
    told("llamacpp", 404, openai("m", "not_found_error", 404), NF),
    told("llamacpp", 500, openai("m", "server_error", 500), SRV),
    told("llamacpp", 501, openai("m", "not_supported_error", 501), BAD),
    told("llamacpp", 503, openai("Loading model", "unavailable_error", 503), OVER),
    told("llamacpp", 400, openai("m", "exceed_context_size_error", 400, n_prompt_tokens=9, n_ctx=8), CTX),
    told("llamacpp", 200, 'data: {"error":{"code":503,"message":"m","type":"unavailable_error"}}\n\n', OVER),
    told("llamacpp", 200, 'data: {}\n\nerror: {"code":500,"message":"m","type":"server_error"}\n\n', SRV),
    told("tgi", 429, {"error": "Model is overloaded", "error_type": "overloaded"}, OVER),
    told("tgi", 422, {"error": "Input validation error: m", "error_type": "validation"}, BAD),
    told("tgi", 422, {"error": f"Input validation error: {TGI_LONG}", "error_type": "validation"}, CTX),
    told("tgi", 424, {"error": "Request failed during generation", "error_type": "generation"}, SRV),
    told("tgi", 500, {"error": "Incomplete generation", "error_type": "incomplete_generation"}, CUT),
    told("tgi", 422, {"error": "Template error", "error_type": "template_error"}, BAD),
    told("tgi", 422, {"error": "Tool error", "error_type": "tool_error"}, BAD),
    told("tgi", 200, 'data:{"error":"Model is overloaded","error_type":"overloaded"}\n\n', OVER, phase=Phase.STREAMING),
]

ROWS = [
    *DEFAULT_ROWS,
    *OPENAI_ROWS,
    *AZURE_ROWS,
    *ANTHROPIC_ROWS,
    *GEMINI_ROWS,
    *VERTEX_ROWS,
    *MISTRAL_ROWS,
    *GROQ_ROWS,
    *TOGETHER_ROWS,
    *FIREWORKS_ROWS,
    *DEEPSEEK_ROWS,
    *XAI_ROWS,
    *COHERE_ROWS,
    *OPENROUTER_ROWS,
    *BEDROCK_ROWS,
    *SELF_HOSTED_ROWS,
]
