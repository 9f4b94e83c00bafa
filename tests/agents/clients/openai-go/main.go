// The openai SDK for Go: each trial by chat completions and by Responses.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

var (
	ctx     = context.Background()
	model   = os.Getenv("MODEL")
	client  = openai.NewClient(option.WithBaseURL(os.Getenv("GATEWAY_URL")+"/v1"), option.WithAPIKey(os.Getenv("GATEWAY_KEY")))
	tooLong = regexp.MustCompile("context|prompt is too long|exceeds the maximum number of tokens|Input is too long")
	weather = map[string]any{
		"type":                 "object",
		"properties":           map[string]any{"city": map[string]any{"type": "string"}, "thread_id": map[string]any{"type": "string"}},
		"required":             []string{"city", "thread_id"},
		"additionalProperties": false,
	}
)

func chat(model, prompt string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:    model,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(prompt)},
	}
}

func response(model, prompt string) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: model,
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(prompt)},
	}
}

func story(text string) error {
	if !strings.Contains(text, "emulated answer to:") {
		return fmt.Errorf("no answer: %s", text)
	}
	return nil
}

func tool() error {
	asked := chat(model, "Use get_weather for Paris.")
	asked.Tools = []openai.ChatCompletionToolUnionParam{
		openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "get_weather", Parameters: weather}),
	}
	turn, err := client.Chat.Completions.New(ctx, asked)
	if err != nil {
		return err
	}
	message := turn.Choices[0].Message
	if len(message.ToolCalls) != 1 {
		return fmt.Errorf("%d calls", len(message.ToolCalls))
	}
	asked.Messages = append(asked.Messages, message.ToParam(), openai.ToolMessage("sunny", message.ToolCalls[0].ID))
	last, err := client.Chat.Completions.New(ctx, asked)
	if err != nil {
		return err
	}
	if err := story(last.Choices[0].Message.Content); err != nil {
		return err
	}

	tools := []responses.ToolUnionParam{responses.ToolParamOfFunction("get_weather", weather, true)}
	asking := response(model, "Use get_weather for Paris.")
	asking.Tools = tools
	answer, err := client.Responses.New(ctx, asking)
	if err != nil {
		return err
	}
	items := responses.ResponseInputParam{
		responses.ResponseInputItemParamOfMessage("Use get_weather for Paris.", responses.EasyInputMessageRoleUser),
	}
	for _, item := range answer.Output {
		if item.Type == "function_call" {
			call := item.AsFunctionCall()
			items = append(items, responses.ResponseInputItemParamOfFunctionCall(call.Arguments, call.CallID, call.Name))
			result := responses.ResponseInputItemParamOfFunctionCallOutput("sunny")
			result.OfFunctionCallOutput.CallID = openai.String(call.CallID)
			items = append(items, result)
		}
	}
	asking.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: items}
	if answer, err = client.Responses.New(ctx, asking); err != nil {
		return err
	}
	return story(answer.OutputText())
}

func stream() error {
	chunks, pieces, text := client.Chat.Completions.NewStreaming(ctx, chat(model, "Tell me a story.")), 0, ""
	for chunks.Next() {
		for _, choice := range chunks.Current().Choices {
			pieces, text = pieces+1, text+choice.Delta.Content
		}
	}
	if err := chunks.Err(); err != nil {
		return err
	}
	if err := story(text); err != nil || pieces < 3 {
		return fmt.Errorf("%d pieces: %v", pieces, err)
	}
	events, pieces, text := client.Responses.NewStreaming(ctx, response(model, "Tell me a story.")), 0, ""
	for events.Next() {
		if event := events.Current(); event.Type == "response.output_text.delta" {
			pieces, text = pieces+1, text+event.Delta
		}
	}
	if err := events.Err(); err != nil {
		return err
	}
	if err := story(text); err != nil || pieces < 3 {
		return fmt.Errorf("%d pieces: %v", pieces, err)
	}
	return nil
}

func failure() error {
	long := os.Getenv("LONG_MODEL")
	_, byChat := client.Chat.Completions.New(ctx, chat(long, "Tell me a story."))
	_, byResponses := client.Responses.New(ctx, response(long, "Tell me a story."))
	chunks := client.Chat.Completions.NewStreaming(ctx, chat(long, "Tell me a story."))
	chunks.Next()
	events := client.Responses.NewStreaming(ctx, response(long, "Tell me a story."))
	events.Next()
	for _, err := range []error{byChat, byResponses, chunks.Err(), events.Err()} {
		var problem *openai.Error
		if !errors.As(err, &problem) || problem.StatusCode != 400 || !tooLong.MatchString(problem.Message) {
			return fmt.Errorf("not the 400: %v", err)
		}
	}
	return nil
}

func main() {
	outcomes := map[string]any{"tool": nil, "stream": nil, "error": nil}
	for name, trial := range map[string]func() error{"tool": tool, "stream": stream, "error": failure} {
		if err := trial(); err != nil {
			outcomes[name] = err.Error()
		}
	}
	printed, _ := json.Marshal(map[string]any{"outcomes": outcomes})
	fmt.Println(string(printed))
}
