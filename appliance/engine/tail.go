package engine

import (
	"bytes"
	"strings"
	"sync"
)

// tail keeps the last lines of the engine's output, for the error at its end.
type tail struct {
	mu    sync.Mutex
	lines []string
	part  []byte
}

const tailLines = 40

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.part = append(t.part, p...)
	for {
		line, rest, found := bytes.Cut(t.part, []byte("\n"))
		if !found {
			break
		}
		t.lines = append(t.lines, string(line))
		t.part = rest
	}
	if over := len(t.lines) - tailLines; over > 0 {
		t.lines = append(t.lines[:0], t.lines[over:]...)
	}
	if len(t.part) > 64<<10 { // a line without an end
		t.part = nil
	}
	return len(p), nil
}

// lastWords returns the line that most likely is the reason of the engine's end.
func (t *tail) lastWords() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, mark := range []string{"level=fatal", "panic:", "level=error", "F0"} {
		for i := len(t.lines) - 1; i >= 0; i-- {
			if strings.Contains(t.lines[i], mark) {
				return clip(t.lines[i])
			}
		}
	}
	if n := len(t.lines); n > 0 {
		return clip(t.lines[n-1])
	}
	return "it said nothing"
}

func clip(s string) string {
	if _, msg, ok := strings.Cut(s, "msg="); ok {
		s = msg
	}
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}
