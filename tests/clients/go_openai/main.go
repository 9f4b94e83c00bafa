// Streams one answer with the official SDK of OpenAI's: `main BASE_URL chat|responses`; prints what it has got.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

func main() {
	client := openai.NewClient(option.WithBaseURL(os.Args[1]+"/v1"), option.WithAPIKey("k"), option.WithMaxRetries(0))
	text := ""
	var err error
	if os.Args[2] == "chat" {
		stream := client.Chat.Completions.NewStreaming(context.Background(), openai.ChatCompletionNewParams{
			Model:    "m",
			Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")},
		})
		for stream.Next() {
			for _, choice := range stream.Current().Choices {
				text += choice.Delta.Content
			}
		}
		err = stream.Err()
	} else {
		stream := client.Responses.NewStreaming(context.Background(), responses.ResponseNewParams{
			Model: "m",
			Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hi")},
		})
		for stream.Next() {
			if event := stream.Current(); event.Type == "response.output_text.delta" {
				text += event.Delta
			}
		}
		err = stream.Err()
	}
	told := map[string]any{"text": text, "error": nil}
	if err != nil {
		told["error"] = err.Error()
	}
	said, _ := json.Marshal(told)
	fmt.Println(string(said))
}
