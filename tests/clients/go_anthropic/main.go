// Streams one answer with the official SDK of Anthropic's: `main BASE_URL messages`; prints what it has got.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

func main() {
	client := anthropic.NewClient(option.WithBaseURL(os.Args[1]), option.WithAPIKey("k"), option.WithMaxRetries(0))
	stream := client.Messages.NewStreaming(context.Background(), anthropic.MessageNewParams{
		Model:     "m",
		MaxTokens: 5,
		Messages:  []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hi"))},
	})
	text := ""
	for stream.Next() {
		if event, ok := stream.Current().AsAny().(anthropic.ContentBlockDeltaEvent); ok {
			text += event.Delta.Text
		}
	}
	told := map[string]any{"text": text, "error": nil}
	if err := stream.Err(); err != nil {
		told["error"] = err.Error()
	}
	said, _ := json.Marshal(told)
	fmt.Println(string(said))
}
