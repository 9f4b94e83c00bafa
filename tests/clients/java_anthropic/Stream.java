import com.anthropic.client.AnthropicClient;
import com.anthropic.client.okhttp.AnthropicOkHttpClient;
import com.anthropic.models.messages.MessageCreateParams;

/** Streams one answer with the official SDK of Anthropic's: `Stream BASE_URL messages`; prints what it has got. */
public final class Stream {
    public static void main(String[] args) {
        AnthropicClient client =
                AnthropicOkHttpClient.builder().baseUrl(args[0]).apiKey("k").maxRetries(0).build();
        StringBuilder text = new StringBuilder();
        String error = "null";
        var asked = MessageCreateParams.builder().model("m").maxTokens(5).addUserMessage("hi").build();
        try (var stream = client.messages().createStreaming(asked)) {
            stream.stream()
                    .flatMap(event -> event.contentBlockDelta().stream())
                    .flatMap(event -> event.delta().text().stream())
                    .forEach(delta -> text.append(delta.text()));
        } catch (RuntimeException problem) {
            error = '"' + problem.toString().replace("\\", "").replace("\"", "'").replace("\n", " ") + '"';
        }
        System.out.println("{\"text\":\"" + text + "\",\"error\":" + error + "}");
        System.exit(0);
    }
}
