import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.core.JsonValue;
import com.openai.errors.BadRequestException;
import com.openai.models.FunctionDefinition;
import com.openai.models.FunctionParameters;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionFunctionTool;
import com.openai.models.chat.completions.ChatCompletionToolMessageParam;
import com.openai.models.responses.ResponseCreateParams;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/** The openai SDK for Java: a tool by chat completions, streams and errors by Responses, too. */
public final class Main {
    private static final Map<String, String> ENV = System.getenv();
    private static final String MODEL = ENV.get("MODEL");
    private static final String LONG = ENV.get("LONG_MODEL");
    private static final String ASK = "Tell me a story.";
    private static final Pattern TOO_LONG =
            Pattern.compile("context|prompt is too long|exceeds the maximum number of tokens|Input is too long");
    private static final OpenAIClient CLIENT = OpenAIOkHttpClient.builder()
            .baseUrl(ENV.get("GATEWAY_URL") + "/v1")
            .apiKey(ENV.get("GATEWAY_KEY"))
            .build();

    private static void isStory(String text) {
        if (!text.contains("emulated answer to:")) {
            throw new IllegalStateException("no answer: " + text);
        }
    }

    private static void isStream(List<String> pieces) {
        isStory(String.join("", pieces));
        if (pieces.size() < 3) {
            throw new IllegalStateException(pieces.size() + " pieces");
        }
    }

    private static ChatCompletionCreateParams.Builder chat(String model, String prompt) {
        return ChatCompletionCreateParams.builder().model(model).addUserMessage(prompt);
    }

    private static ResponseCreateParams response(String model) {
        return ResponseCreateParams.builder().model(model).input(ASK).build();
    }

    private static void tool() {
        Map<String, Object> text = Map.of("type", "string");
        var weather = FunctionParameters.builder()
                .putAdditionalProperty("type", JsonValue.from("object"))
                .putAdditionalProperty("properties", JsonValue.from(Map.of("city", text, "thread_id", text)))
                .putAdditionalProperty("required", JsonValue.from(List.of("city", "thread_id")))
                .build();
        var function = FunctionDefinition.builder().name("get_weather").parameters(weather).build();
        var asked = chat(MODEL, "Use get_weather for Paris.")
                .addTool(ChatCompletionFunctionTool.builder().function(function).build());
        var turn = CLIENT.chat().completions().create(asked.build()).choices().get(0).message();
        var call = turn.toolCalls().orElseThrow().get(0).asFunction();
        var result = ChatCompletionToolMessageParam.builder().toolCallId(call.id()).content("sunny").build();
        var last = CLIENT.chat().completions().create(asked.addMessage(turn).addMessage(result).build());
        isStory(last.choices().get(0).message().content().orElse(""));
    }

    private static List<String> chatPieces(String model) {
        try (var chunks = CLIENT.chat().completions().createStreaming(chat(model, ASK).build())) {
            return chunks.stream()
                    .flatMap(chunk -> chunk.choices().stream())
                    .flatMap(choice -> choice.delta().content().stream())
                    .toList();
        }
    }

    private static List<String> responsePieces(String model) {
        try (var events = CLIENT.responses().createStreaming(response(model))) {
            return events.stream()
                    .flatMap(event -> event.outputTextDelta().stream())
                    .map(delta -> delta.delta())
                    .toList();
        }
    }

    private static void stream() {
        isStream(chatPieces(MODEL));
        isStream(responsePieces(MODEL));
    }

    private static void error() {
        List<Runnable> calls = List.of(
                () -> CLIENT.chat().completions().create(chat(LONG, ASK).build()),
                () -> CLIENT.responses().create(response(LONG)),
                () -> chatPieces(LONG),
                () -> responsePieces(LONG));
        for (Runnable call : calls) {
            try {
                call.run();
            } catch (BadRequestException problem) {
                if (TOO_LONG.matcher(problem.getMessage()).find()) {
                    continue;
                }
                throw problem;
            }
            throw new IllegalStateException("no error");
        }
    }

    private static String outcome(Runnable trial) {
        try {
            trial.run();
            return "null";
        } catch (RuntimeException problem) {
            return '"' + problem.toString().replace("\\", "").replace("\"", "'").replace("\n", " ") + '"';
        }
    }

    public static void main(String[] args) {
        String[] outcomes = {outcome(Main::tool), outcome(Main::stream), outcome(Main::error)};
        System.out.printf("{\"outcomes\": {\"tool\": %s, \"stream\": %s, \"error\": %s}}%n", (Object[]) outcomes);
        System.exit(0);
    }
}
