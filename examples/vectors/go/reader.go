// Package vectors reads what `kvspec vectors` writes, and has each conversation with a manager.
package vectors

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
)

// Answer makes the call of a message and returns the protocol's answer: a "result" or an "error".
type Answer func(message json.RawMessage) map[string]any

// Done counts conversations and right answers.
type Done struct{ Followed, LeftOut, Right int }

type entry struct {
	Version       int
	File          string
	SpecTypes     []any `json:"spec_types"`
	HashFunctions []any `json:"hash_functions"`
	Features      []any
}

type line struct {
	Message json.RawMessage
	Result  json.RawMessage // nil: any result is right, or one of Errors is due
	Errors  []any
	Needs   []any
}

// FollowAll has every conversation of a folder, each with a manager of its own; it stops at a wrong answer.
func FollowAll(folder string, make func() Answer) (done Done, err error) {
	index, err := read[entry](filepath.Join(folder, "index.jsonl"))
	if err != nil || len(index) == 0 || index[0].Version != 1 {
		return done, fmt.Errorf("not version 1 of the format: %v", err)
	}
	for _, each := range index[1:] {
		right, err := follow(folder, each, make())
		if err != nil {
			return done, err
		}
		if right == 0 {
			done.LeftOut++
			continue
		}
		done.Followed++
		done.Right += right
	}
	return done, nil
}

// One conversation: how many answers were right, 0 for a manager that lacks what it needs.
func follow(folder string, each entry, answer Answer) (right int, err error) {
	lines, err := read[line](filepath.Join(folder, each.File))
	var offered map[string]any
	for number, line := range lines {
		if !holds(offered["features"], line.Needs) {
			continue
		}
		given := plain(answer(line.Message)).(map[string]any)
		if number == 0 {
			offered, _ = given["result"].(map[string]any)
			if !holds(offered["spec_types"], each.SpecTypes) || !holds(offered["features"], each.Features) ||
				!holds(offered["hash_functions"], each.HashFunctions) {
				return 0, nil
			}
		}
		failure, failed := given["error"].(map[string]any)
		isRight := !failed
		if line.Result != nil {
			isRight = !failed && reflect.DeepEqual(given["result"], plain(line.Result))
		} else if line.Errors != nil {
			isRight = failed && holds(line.Errors, []any{failure["class"]})
		}
		if !isRight {
			return right, fmt.Errorf("%s, line %d: %s\n  expected %s%v\n  observed %v",
				each.File, number+1, line.Message, line.Result, line.Errors, given)
		}
		right++
	}
	return right, err
}

// Whether all that is wanted is offered.
func holds(offered any, wanted []any) bool {
	list, _ := offered.([]any)
	for _, name := range wanted {
		found := false
		for _, item := range list {
			found = found || item == name
		}
		if !found {
			return false
		}
	}
	return true
}

// A value as JSON has it; numbers are doubles.
func plain(value any) (result any) {
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, &result)
	}
	if err != nil {
		panic(err)
	}
	return result
}

func read[T any](path string) (result []T, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<24)
	for scanner.Scan() {
		var value T
		if err := json.Unmarshal(scanner.Bytes(), &value); err != nil {
			return nil, err
		}
		result = append(result, value)
	}
	return result, scanner.Err()
}
