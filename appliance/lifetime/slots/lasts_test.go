package slots

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// A start that ends early and not in order stays counted.
func TestLasts(t *testing.T) {
	for _, inOrder := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			starts := filepath.Join(t.TempDir(), "starts")
			must(t, os.WriteFile(starts, []byte("a 3\n"), 0o600))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go Lasts(ctx, starts, slog.New(slog.DiscardHandler))
			time.Sleep(lasts - time.Second) // of the bubble's clock
			synctest.Wait()
			if _, err := os.Stat(starts); err != nil {
				t.Errorf("it is taken away too early: %v", err)
			}
			if inOrder {
				cancel()
			} else {
				time.Sleep(2 * time.Second)
			}
			synctest.Wait()
			if _, err := os.Stat(starts); err == nil {
				t.Errorf("in order %v: it stays", inOrder)
			}
		})
	}
}
