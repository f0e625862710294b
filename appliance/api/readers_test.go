package api

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What readers ask beside what they may is refused, whatever the supervisor has a route for.
func TestReadersReadOnly(t *testing.T) {
	asked := ""
	h := readOnly(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = r.Method + " " + r.URL.String() + string(body)
		io.WriteString(w, "{}")
	}))
	for _, c := range []struct {
		method, path string
		may          bool
	}{
		{"GET", "/v1/status", true}, {"GET", "/v1/health", true}, {"GET", "/v1/metrics", true}, {"GET", "/v1/vclusters", true}, {"GET", "/v1/fleet", true},
		{"POST", "/v1/status", false}, {"PUT", "/v1/status", false}, {"DELETE", "/v1/vclusters", false}, {"HEAD", "/v1/status", false}, {"CONNECT", "/v1/status", false},
		{"GET", "/v1/store", false}, {"GET", "/v1/config", false}, {"GET", "/v1/trace", false}, {"GET", "/v1/invites", false}, {"GET", "/v1/kubeconfigs", false}, {"GET", "/v1/goroutines", false},
		{"GET", "/v1/vclusters/ann/kubeconfig", false}, {"GET", "/v1/vclusters/", false}, {"GET", "/v1/status/../store", false}, {"GET", "/v1/status?x=1", false}, {"GET", "//v1/status", false},
		{"POST", "/v1/peers/approve", false}, {"POST", "/v1/peers/unpeer", false}, {"POST", "/v1/upgrade", false}, {"POST", "/v1/kubeconfigs", false}, {"GET", "/", false},
	} {
		asked = ""
		r := httptest.NewRequest(c.method, "http://rivulet/v1/status", strings.NewReader("body"))
		r.URL.Path, r.URL.RawQuery, _ = strings.Cut(c.path, "?")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if may := asked != ""; may != c.may || may && strings.Contains(asked, "body") || !may && (w.Code < 400 || !strings.Contains(w.Body.String(), "use sudo")) {
			t.Errorf("%s %s: passed on %q, answered %d %s", c.method, c.path, asked, w.Code, w.Body)
		}
	}
}

// A member of the group reads and nothing else; somebody else does not even that.
func TestReadersSocket(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be other users")
	}
	const gid, nobody = 45678, 45679
	mux := http.NewServeMux()
	mux.Handle("GET /v1/status", JSON(func(*http.Request) (any, error) { return Status{Name: "a"}, nil }))
	mux.Handle("GET /v1/store", JSON(func(*http.Request) (any, error) { return Text{"secret"}, nil }))
	mux.Handle("POST /v1/peers/approve", JSON(func(*http.Request) (any, error) { return nil, nil }))
	dir := serving(t, mux)
	for p := dir; p != "/"; p = filepath.Dir(p) { // what the test made is opened for others, nothing above it
		if strings.HasPrefix(p, filepath.Clean(os.TempDir())+"/") {
			if err := os.Chmod(p, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if fi, err := os.Stat(p); err != nil || fi.Mode().Perm()&0o001 == 0 {
			t.Skip("needs a folder for temporary files that other users reach")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- serveReaders(ctx, dir, gid, mux, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	case <-time.After(10 * time.Second):
		t.Fatal("the socket does not listen")
	}
	defer func() { cancel(); <-done }()
	if fi, err := os.Stat(ReaderSocket(dir)); err != nil || fi.Mode().Perm() != 0o660 {
		t.Fatalf("%v, %v", fi.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".s[0-9]*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	test := filepath.Join(dir, "test")
	if err := os.WriteFile(test, self, 0o755); err != nil {
		t.Fatal(err)
	}
	as := func(group uint32, method, path string) string {
		cmd := exec.Command(test, "-test.run=^TestAsAnotherUser$")
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), "RIVULET_READER="+dir, "RIVULET_ASKS="+method+" "+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: group}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	for _, c := range []struct {
		group              uint32
		method, path, want string
	}{
		{gid, "GET", "/v1/status", "says: <nil>"},
		{gid, "GET", "/v1/store", "for this use sudo"},
		{gid, "POST", "/v1/peers/approve", "may be opened by root only"},
		{nobody, "GET", "/v1/status", "may be opened by root only"},
	} {
		if out := as(c.group, c.method, c.path); !strings.Contains(out, c.want) || strings.Contains(out, "secret") {
			t.Errorf("group %d, %s %s: %s, want %q", c.group, c.method, c.path, out, c.want)
		}
	}
}

// TestAsAnotherUser is what TestReadersSocket runs as somebody else.
func TestAsAnotherUser(t *testing.T) {
	method, path, _ := strings.Cut(os.Getenv("RIVULET_ASKS"), " ")
	if path == "" {
		t.Skip("is run by TestReadersSocket")
	}
	var in any
	if method == "POST" {
		in = Word{}
	}
	var out Text
	err := Call(t.Context(), os.Getenv("RIVULET_READER"), method, path, in, &out)
	os.Stdout.WriteString(out.Text + " says: ")
	if err == nil {
		os.Stdout.WriteString("<nil>")
	} else {
		os.Stdout.WriteString(err.Error())
	}
}
