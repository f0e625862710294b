package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"rivulet/appliance/api"
)

// What a supervisor says is printed once, or again and again until the user has seen
// enough; the exit code of status is for scripts.
func TestStatusOnceAndWatched(t *testing.T) {
	for _, c := range []struct {
		args  string
		ready bool
		asked int32 // how often, before the user has enough
		code  int
		want  string
	}{
		{args: "status", ready: true, asked: 1, want: "lab-1  Ready"},
		{args: "status", asked: 1, code: exitNotReady, want: "not ready: engine"},
		{args: "status -o json", asked: 1, code: exitNotReady, want: `"name":"lab-1"`},
		{args: "status --watch", asked: 2, want: "not ready: engine"},
		{args: "status --watch -o json", asked: 2, want: `"name":"lab-1"`},
		{args: "peers", asked: 1, want: "none found yet"},
		{args: "peers --watch -o wide", asked: 2, want: "none found yet"},
		{args: "peers --watch -o json", asked: 2},
	} {
		t.Run(c.args, func(t *testing.T) {
			ctx, enough := context.WithCancel(t.Context())
			defer enough()
			dir := t.TempDir()
			l, err := net.Listen("unix", filepath.Join(dir, "rivulet.sock"))
			if err != nil {
				t.Fatal(err)
			}
			var asked atomic.Int32
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				json.NewEncoder(w).Encode(api.Status{Name: "lab-1", Ready: c.ready, Waiting: "engine"})
			})}
			go srv.Serve(l)
			defer srv.Close()
			root, out := newRoot("engine"), &reader{after: func() {
				if asked.Load() >= c.asked && c.asked > 1 {
					enough()
				}
			}}
			root.SetOut(out)
			root.SetArgs(append([]string{"--runtime", dir}, strings.Fields(c.args)...))
			err = root.ExecuteContext(ctx)
			var exit *exitError
			if code := 0; errors.As(err, &exit) && exit.code != c.code || !errors.As(err, &exit) && (err != nil || c.code != code) {
				t.Errorf("%v, want code %d", err, c.code)
			}
			if got := out.String(); !strings.Contains(got, c.want) || strings.Contains(got, "\033") {
				t.Errorf("printed %q, want %q and no escape sequence", got, c.want)
			}
			if asked.Load() != c.asked {
				t.Errorf("asked %d times, want %d", asked.Load(), c.asked)
			}
		})
	}
}

// reader is somebody who has enough at some time.
type reader struct {
	bytes.Buffer
	after func()
}

func (s *reader) Write(p []byte) (int, error) {
	defer s.after()
	return fmt.Fprint(&s.Buffer, string(p))
}
