package main

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
)

// A client's answers are kept, and a second start with the same folder shows as one.
func TestAnswersAreKept(t *testing.T) {
	work := t.TempDir()
	for start := 1; start <= 2; start++ {
		s, err := open(work, State{Session: "7", Pod: "uid"})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(s.handler())
		c, err := websocket.Dial(strings.Replace(server.URL, "http", "ws", 1)+"/ws", "", server.URL)
		if err != nil {
			t.Fatal(err)
		}
		for i := 1; i <= 3; i++ {
			if err := websocket.Message.Send(c, "one\nline"); err != nil {
				t.Fatal(err)
			}
			var got State
			if err := websocket.JSON.Receive(c, &got); err != nil {
				t.Fatal(err)
			}
			if got.Session != "7" || got.Pod != "uid" || got.Starts != start || got.Answers != 3*(start-1)+i {
				t.Errorf("start %d, answer %d: %+v", start, i, got)
			}
		}
		c.Close()
		server.Close()
	}
	raw, err := os.ReadFile(filepath.Join(work, "answers"))
	if err != nil || string(raw) != strings.Repeat("one line\n", 6) {
		t.Errorf("%q, %v", raw, err)
	}
}
