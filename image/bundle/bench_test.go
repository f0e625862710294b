package bundle

import (
	"log/slog"
	"testing"
)

// What a start costs: the embedded bundle on disk and unchanged, hashed in
// full, and unpacked for the first time.
func BenchmarkStart(b *testing.B) {
	if _, ok := Embedded(); !ok {
		b.Skip("needs the embedded bundle: make bundle, then go test -tags bundle -bench Start")
	}
	root := b.TempDir()
	dir, err := Unpack(root, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("unchanged", func(b *testing.B) {
		for b.Loop() {
			if _, err := Unpack(root, slog.New(slog.DiscardHandler)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("hashed", func(b *testing.B) {
		for b.Loop() {
			if err := dir.Verify(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unpacked", func(b *testing.B) {
		for b.Loop() {
			if _, err := Unpack(b.TempDir(), slog.New(slog.DiscardHandler)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
