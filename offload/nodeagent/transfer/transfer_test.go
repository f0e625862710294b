package transfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/fabric/rpc"
	"rivulet/offload/nodeagent/filetree"
)

// serve is a node whose volume v is the tree.
func serve(t *testing.T, tree filetree.Tree) Remote {
	t.Helper()
	mux := http.NewServeMux()
	for route, do := range Routes {
		mux.HandleFunc(route[0]+" /v"+route[1], func(w http.ResponseWriter, r *http.Request) {
			answer, err := Serve(r.Context(), w, r, tree, do)
			Answer(w, answer, err)
		})
	}
	s := httptest.NewUnstartedServer(mux)
	s.EnableHTTP2 = true // as between nodes
	s.StartTLS()
	t.Cleanup(s.Close)
	return Remote{HTTP: s.Client(), URL: s.URL + "/v", Where: "node b"}
}

func folder(t *testing.T, size int64, files map[string]string) (filetree.Folder, string) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	f, err := filetree.OpenFolder(dir, size)
	if err != nil {
		t.Fatal(err)
	}
	return f, dir
}

// What another node has is the same as here, both ways; what it has no room for is refused with the reason.
func TestATreeOfAnotherNode(t *testing.T) {
	ctx := t.Context()
	here, _ := folder(t, 1<<20, map[string]string{"a": "one", "b": strings.Repeat("two", 100_000)})
	there, dir := folder(t, 1<<20, map[string]string{"old": "x"})
	remote := serve(t, there)
	want, err := here.SumUp(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var files bytes.Buffer
	if err := here.Pack(ctx, &files); err != nil {
		t.Fatal(err)
	}
	got, err := remote.Replace(ctx, want.Bytes, bytes.NewReader(files.Bytes()))
	if err != nil || got != want {
		t.Fatalf("%+v %v, want %+v", got, err, want)
	}
	if sum, err := remote.SumUp(ctx); err != nil || sum != want {
		t.Errorf("%+v %v", sum, err)
	}
	if total, err := remote.Measure(ctx); err != nil || total.Files != 2 || total.Bytes < 300_000 {
		t.Errorf("%+v %v", total, err)
	}
	var back bytes.Buffer
	if err := remote.Pack(ctx, &back); err != nil || back.Len() != files.Len() {
		t.Errorf("%d bytes of %d: %v", back.Len(), files.Len(), err)
	}
	if _, err := os.Stat(filepath.Join(dir, "old")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was there before: %v", err)
	}
	if _, err := remote.Replace(ctx, 2<<20, bytes.NewReader(files.Bytes())); !errors.Is(err, filetree.ErrTooLarge) || !strings.Contains(err.Error(), "node b: the volume is too large: its files are 2 MiB") {
		t.Errorf("more than the volume's size: %v", err)
	}
	if _, err := remote.Replace(ctx, 1<<60, bytes.NewReader(files.Bytes())); !errors.Is(err, filetree.ErrNoRoom) {
		t.Errorf("more than the disk: %v", err)
	}
}

// broken is a tree that fails, after some bytes.
type broken struct {
	first int
	err   error
}

func (b broken) Measure(context.Context) (t filetree.Total, err error) { return t, b.err }
func (b broken) SumUp(context.Context) (s filetree.Sum, err error)     { return s, b.err }
func (b broken) Pack(_ context.Context, w io.Writer) error {
	if b.first > 0 {
		if _, err := w.Write(make([]byte, b.first)); err != nil {
			return err
		}
	}
	return b.err
}

func (b broken) Replace(context.Context, int64, io.Reader) (s filetree.Sum, err error) {
	return s, b.err
}

// A failure there is the same failure here; a part is never the whole.
func TestFailures(t *testing.T) {
	for _, want := range []error{filetree.ErrNoRoom, filetree.ErrTooLarge, filetree.ErrInUse, filetree.ErrBusy} {
		remote := serve(t, broken{err: want})
		_, measured := remote.Measure(t.Context())
		_, summed := remote.SumUp(t.Context())
		_, replaced := remote.Replace(t.Context(), 1, strings.NewReader("x"))
		for i, err := range []error{measured, summed, replaced, remote.Pack(t.Context(), io.Discard)} {
			if !errors.Is(err, want) || err.Error() != "node b: "+want.Error() {
				t.Errorf("%d: %v, want %v", i, err, want)
			}
		}
	}
	known := (*rpc.Error)(nil)
	if _, err := serve(t, broken{err: errors.New("the disk is gone")}).Measure(t.Context()); err == nil || errors.As(err, &known) || err.Error() != "node b: the disk is gone" {
		t.Errorf("what may pass: %v", err)
	}
	if _, err := serve(t, broken{err: &rpc.Error{Code: "no-volume", Message: "no"}}).Measure(t.Context()); !errors.As(err, &known) || known.Code != "no-volume" {
		t.Errorf("what stays: %v", err)
	}
	old := httptest.NewServer(http.NotFoundHandler())
	defer old.Close()
	if _, err := (Remote{HTTP: old.Client(), URL: old.URL, Where: "node b"}).Measure(t.Context()); !errors.As(err, &known) || !strings.Contains(err.Error(), "upgrade it") {
		t.Errorf("an older version: %v", err)
	}
	for _, first := range []int{1, 1 << 20} {
		var got bytes.Buffer
		if err := serve(t, broken{first, filetree.ErrTooLarge}).Pack(t.Context(), &got); err == nil {
			t.Errorf("%d bytes of %d are taken for the whole", got.Len(), first)
		}
	}
}

// endless is read as long as somebody does.
type endless struct{ reads atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.reads.Add(1)
	return len(p), nil
}

// A refusal arrives while files are being sent, and nothing reads them afterwards.
func TestRefusedWhileItIsSent(t *testing.T) {
	remote := serve(t, broken{err: filetree.ErrNoRoom})
	for range 20 {
		var files endless
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := remote.Replace(ctx, 1, &files)
		after := files.reads.Load()
		cancel()
		if !errors.Is(err, filetree.ErrNoRoom) {
			t.Fatal(err)
		}
		remote.HTTP.CloseIdleConnections()
		if n := files.reads.Load(); n != after {
			t.Fatalf("%d reads after the answer", n-after)
		}
	}
}

// writer notices deadlines that are set after its handler has returned.
type writer struct {
	http.ResponseWriter
	returned bool
	late     bool
}

func (w *writer) SetReadDeadline(time.Time) error  { w.late = w.late || w.returned; return nil }
func (w *writer) SetWriteDeadline(time.Time) error { return w.SetReadDeadline(time.Time{}) }

// A client that hangs up while its request ends is no use of a connection after the handler's return, with which net/http
// ends the program. The race detector sees one, too.
func TestNothingIsCutAfterTheEnd(t *testing.T) {
	for range 2000 {
		w := &writer{}
		ctx, cancel := context.WithCancel(t.Context())
		stop := cutShort(ctx, w)
		hung := make(chan struct{})
		go func() {
			defer close(hung)
			cancel()
		}()
		stop()
		w.returned = true
		<-hung
		if w.late {
			t.Fatal("a deadline was set after the return")
		}
	}
}
