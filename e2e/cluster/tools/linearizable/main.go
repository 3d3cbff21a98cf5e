// Command linearizable reads the history of registers from standard input, one operation a line, and says for each
// register whether its history is linearizable. It exits with 1 if one isn't, and with 2 if it couldn't be decided.
//
//	{"client": 0, "key": "a", "write": true, "value": "1", "call": 10, "return": 20}
//
// A read has what it returned as its value, "" for a key that isn't there. "return" is missing where nobody knows whether
// the operation took effect: that of a write may be any time after "call", and such reads say nothing and are left out.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// Patience with one register's history.
const timeout = 60 * time.Second

type operation struct {
	Client int    `json:"client"`
	Key    string `json:"key"`
	Write  bool   `json:"write"`
	Value  string `json:"value"`
	Call   int64  `json:"call"`
	Return *int64 `json:"return"`
}

// What a register may hold: its first content is whatever is read first.
type state struct {
	value string
	seen  bool
}

var register = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(before, input, output any) (bool, any) {
		now, in := before.(state), input.(operation)
		if in.Write {
			return true, state{value: in.Value, seen: true}
		}
		read := output.(string)
		return !now.seen || now.value == read, state{value: read, seen: true}
	},
	Equal: func(a, b any) bool { return a == b },
}

func read() (map[string][]porcupine.Operation, error) {
	histories := map[string][]porcupine.Operation{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var op operation
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		end := int64(math.MaxInt64)
		if op.Return != nil {
			end = *op.Return
		} else if !op.Write {
			continue
		}
		histories[op.Key] = append(histories[op.Key], porcupine.Operation{
			ClientId: op.Client, Input: op, Call: op.Call, Output: op.Value, Return: end,
		})
	}
	return histories, lines.Err()
}

func run() (int, error) {
	histories, err := read()
	if err != nil {
		return 2, err
	}
	keys := make([]string, 0, len(histories))
	for key := range histories {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	code := 0
	for _, key := range keys {
		switch result := porcupine.CheckOperationsTimeout(register, histories[key], timeout); result {
		case porcupine.Illegal:
			fmt.Printf("%s: not linearizable, %d operations\n", key, len(histories[key]))
			code = 1
		case porcupine.Unknown:
			fmt.Printf("%s: undecided after %s, %d operations\n", key, timeout, len(histories[key]))
			if code == 0 {
				code = 2
			}
		}
	}
	return code, nil
}

func main() {
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "linearizable:", err)
	}
	os.Exit(code)
}
