package lab

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseClusters(t *testing.T) {
	for text, want := range map[string][]Cluster{
		"a=1+2,b=1":       {{"a", []string{"a1", "a2"}}, {"b", nil}},
		"a=1":             {{"a", nil}},
		"shelf=1+0, b2=1": {{"shelf", nil}, {"b2", nil}},
	} {
		if got, err := ParseClusters(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":           "write NAME=1",
		"a":          "write NAME=1",
		"a=":         "write NAME=1",
		"a=1+":       "write NAME=1",
		"a=1+x":      "write NAME=1",
		"a=-1":       "write NAME=1",
		"a=1+2+3":    "write NAME=1",
		"a=1+999":    "write NAME=1",
		"a=1,":       "write NAME=1",
		"a=3+2":      "one server for each cluster",
		"a=0+2":      "one server for each cluster",
		"A=1":        "use a letter",
		"=1":         "use a letter",
		"toolong=1":  "use a letter",
		"a=1,a=1":    "two devices would be called a:",
		"a=1+2,a2=1": "two devices would be called a2:",
	} {
		if got, err := ParseClusters(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v, want an error with %q", text, got, err, want)
		}
	}
}
