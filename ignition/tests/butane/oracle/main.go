// Asks Butane itself about each file of ../cases, with ../files as its files directory, and prints one JSON object
// a line: name, accept, entries (kind, path, and line and column where it knows them), output.
//
//	GOFLAGS=-mod=mod go run . > ../expected.jsonl
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/coreos/butane/config"
	"github.com/coreos/butane/config/common"
)

type entry struct {
	Kind   string `json:"kind"`
	Path   string `json:"path"`
	Line   int64  `json:"line,omitempty"`
	Column int64  `json:"column,omitempty"`
}

type answer struct {
	Name    string          `json:"name"`
	Accept  bool            `json:"accept"`
	Entries []entry         `json:"entries"`
	Output  json.RawMessage `json:"output"`
}

func main() {
	paths, err := filepath.Glob("../cases/*.bu")
	if err != nil || len(paths) == 0 {
		panic("no cases")
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			panic(err)
		}
		options := common.TranslateBytesOptions{
			TranslateOptions: common.TranslateOptions{FilesDir: "../files"},
		}
		output, found, err := config.TranslateBytes(text, options)
		name := strings.TrimSuffix(filepath.Base(path), ".bu")
		out := answer{Name: name, Accept: err == nil, Entries: []entry{}}
		if err == nil {
			out.Output = output
		}
		for _, e := range found.Entries {
			kind := "warning"
			if e.Kind.IsFatal() {
				kind = "error"
			}
			one := entry{Kind: kind, Path: e.Context.String()}
			if e.Marker.StartP != nil {
				one.Line, one.Column = e.Marker.StartP.Line, e.Marker.StartP.Column
			}
			out.Entries = append(out.Entries, one)
		}
		line, err := json.Marshal(out)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(line))
	}
}
