import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.responses.ResponseCreateParams;

/** Streams one answer with the official SDK of OpenAI's: `Stream BASE_URL chat|responses`; prints what it has got. */
public final class Stream {
    public static void main(String[] args) {
        OpenAIClient client =
                OpenAIOkHttpClient.builder().baseUrl(args[0] + "/v1").apiKey("k").maxRetries(0).build();
        StringBuilder text = new StringBuilder();
        String error = "null";
        try {
            if (args[1].equals("chat")) {
                var asked = ChatCompletionCreateParams.builder().model("m").addUserMessage("hi").build();
                try (var stream = client.chat().completions().createStreaming(asked)) {
                    stream.stream()
                            .flatMap(chunk -> chunk.choices().stream())
                            .forEach(choice -> choice.delta().content().ifPresent(text::append));
                }
            } else {
                var asked = ResponseCreateParams.builder().model("m").input("hi").build();
                try (var stream = client.responses().createStreaming(asked)) {
                    stream.stream().forEach(event -> event.outputTextDelta().ifPresent(one -> text.append(one.delta())));
                }
            }
        } catch (RuntimeException problem) {
            error = '"' + problem.toString().replace("\\", "").replace("\"", "'").replace("\n", " ") + '"';
        }
        System.out.println("{\"text\":\"" + text + "\",\"error\":" + error + "}");
        System.exit(0);
    }
}
