package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
)

// What others have written only shows on a terminal, whatever pieces it comes in; what a verb tells the terminal itself
// reaches it, and bytes that are no text do.
func TestOutputIsPlain(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	root := newRoot("engine")
	for _, out := range []io.Writer{root.OutOrStdout(), root.ErrOrStderr()} {
		if _, ok := out.(*plain); !ok {
			t.Errorf("%T is the output of a verb", out)
		}
	}
	out := &plain{file: w}
	forged := "probe\x1b[2K\rfailed\u009b31m\u202e; rm\u2066 -rf\x9b /\x07\ttab grün 日本 👍\n"
	for i := range len(forged) { // a byte at a time
		if n, err := out.Write([]byte{forged[i]}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if _, err := out.Write([]byte(forged)); err != nil {
		t.Fatal(err)
	}
	_, _ = raw(out).Write([]byte("\x1b[H\xff"))
	w.Close()
	got, err := io.ReadAll(r)
	if clean := "probe[2Kfailed31m; rm -rf /\ttab grün 日本 👍\n"; err != nil || string(got) != clean+clean+"\x1b[H\xff" {
		t.Errorf("%q %v", got, err)
	}
}

// Verbs that wait for many things at once write from as many goroutines.
func TestOutputOfManyGoroutines(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const line = "pod grün is evicted\n"
	out := &plain{file: w}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := io.WriteString(out, line); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != strings.Repeat(line, 100) {
		t.Errorf("%q %v", got, err)
	}
}

// JSON has the same texts, in characters that a terminal only shows.
func TestJSONIsPlain(t *testing.T) {
	text := "a\x1b[2J\u009b\u202e\x7f\U000e0001 grün 👍\n"
	var out bytes.Buffer
	if err := (&common{output: "json"}).print(&out, map[string]string{"x": text}); err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got["x"] != text {
		t.Errorf("%q, %v", got, err)
	}
	if want := `{"x":"a\u001b[2J\u009b\u202e\u007f\udb40\udc01 grün 👍\n"}` + "\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
