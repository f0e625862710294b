package logbound

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// Whoever makes one thing happen again and again gets a bounded number of lines, and hides
// nothing else.
func TestLogOfOneTextIsBounded(t *testing.T) {
	var out bytes.Buffer
	h := Handler(slog.NewTextHandler(&out, nil)).WithAttrs([]slog.Attr{slog.String("a", "b")})
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	say := func(at time.Duration, text string) {
		t.Helper()
		if err := h.Handle(context.Background(), slog.NewRecord(begin.Add(at), slog.LevelInfo, text, 0)); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 10000 {
		say(time.Duration(n)*time.Millisecond, "path")
	}
	say(10*time.Second, "another")
	if n := strings.Count(out.String(), "msg=path"); n != PerMinute || !strings.Contains(out.String(), "msg=another") {
		t.Errorf("%d lines, want %d, and the other text", n, PerMinute)
	}
	say(61*time.Second, "path")
	if !strings.HasSuffix(out.String(), fmt.Sprintf("msg=path a=b leftOut=%d\n", 10000-PerMinute)) {
		t.Errorf("end %q", out.String()[out.Len()-80:])
	}
	say(-time.Hour, "path") // the clock goes back
	say(-59*time.Minute, "path")
	if n := strings.Count(out.String(), "msg=path"); n != PerMinute+3 {
		t.Errorf("%d lines after the clock went back", n)
	}
}
