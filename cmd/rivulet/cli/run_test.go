package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// What a library logs as an error, because its request was ended here, is none; its other errors are.
func TestEndedRequestsAreNoErrors(t *testing.T) {
	for _, debug := range []bool{false, true} {
		level := slog.LevelInfo
		if debug {
			level = slog.LevelDebug
		}
		var out bytes.Buffer
		klog.SetSlogLogger(slog.New(library{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})}).With("from", "client-go"))
		t.Cleanup(klog.ClearLogger)
		log := klog.Background()
		log.Error(fmt.Errorf("read: %w", context.Canceled), "Unexpected error when reading response body")
		log.Error(errors.New("connection reset"), "Unexpected error when reading response body")
		log.Info("Starting")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if debug {
			if !strings.Contains(lines[0], "level=DEBUG") || !strings.Contains(lines[0], "context canceled") || !strings.Contains(lines[0], "from=client-go") {
				t.Error(lines[0])
			}
			lines = lines[1:]
		}
		if len(lines) != 2 || !strings.Contains(lines[0], "level=ERROR") || !strings.Contains(lines[0], "reset") || !strings.Contains(lines[1], "Starting") {
			t.Error(lines)
		}
	}
}
