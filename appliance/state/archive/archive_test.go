package archive

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Names of any number and length, which pods choose, make no stream that cannot be read: here 67 MB of them.
func TestNamesHaveNoWeight(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w, err := NewWriter(file, "", time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	const files = 17500
	below := strings.Repeat(strings.Repeat("n", 254)+"/", 15)
	for i := range files {
		if err := w.Bytes(fmt.Sprint(below, i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	names, err := Read(t.Context(), file, "", func(*tar.Header, io.Reader) error { return nil })
	if err != nil || len(names) != files {
		t.Errorf("%d names, %v", len(names), err)
	}
}
