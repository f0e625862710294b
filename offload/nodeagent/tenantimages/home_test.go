package tenantimages

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The consumer's home is asked first for what was imported there, and last for what the
// registry does not give; no other home is.
func TestHomeGivesImages(t *testing.T) {
	var asked []string
	home := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RequestURI())
		what := strings.TrimPrefix(r.URL.Path, "/v1/images/registry.example.org/")
		switch imported := r.URL.Query().Has("imported"); {
		case strings.HasPrefix(what, "a/own/"), strings.HasPrefix(what, "a/pulled/") && !imported:
			fmt.Fprintf(w, "home's %s%s", what, r.Header.Get("Range"))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(home.Close)
	mirror := registry(t, "owner:secret") // it has a/b alone
	host := strings.TrimPrefix(mirror.URL, "http://")
	text := fmt.Sprintf("mirrors: {registry.example.org: {endpoint: [%q]}}\nconfigs: {%q: {auth: {username: owner, password: secret}}}\n", mirror.URL, host)
	on, withheld := true, []string{}
	ask := relay(t, RelayConfig{Registries: func() string { return text }, Withheld: func() []string { return withheld }, Home: func(tag string) (*http.Client, string, bool) {
		return http.DefaultClient, home.URL, on && tag == "0123456789abcdef0123456789abcdef"
	}})
	get := func(path string) string {
		t.Helper()
		code, _, body := ask("GET", path, "", "")
		return fmt.Sprint(code, " ", body)
	}
	if got := get(of + "/a/own/manifests/1"); got != "200 home's a/own/manifests/1" {
		t.Errorf("imported at home: %s", got)
	}
	if got := get(of + "/a/own/blobs/sha256:1"); got != "200 home's a/own/blobs/sha256:1" {
		t.Errorf("its blob: %s", got)
	}
	if got := get(of + "/a/b/manifests/1"); got != "200 the manifest" {
		t.Errorf("one that the registry has: %s", got)
	}
	withheld = []string{"registry.example.org"} // from here on it gives nothing
	if got := get(of + "/a/pulled/manifests/1"); got != "200 home's a/pulled/manifests/1" {
		t.Errorf("one that the registry does not give: %s", got)
	}
	if len(asked) != 5 || !strings.HasSuffix(asked[0], "?imported") || strings.Contains(asked[1], "imported") {
		t.Errorf("home was asked for %q", asked)
	}
	if got := get("/ffffffffffff/registry.example.org/a/own/manifests/1"); strings.HasPrefix(got, "200") {
		t.Errorf("another consumer's pod: %s", got)
	}
	on = false
	if got := get(of + "/a/own/manifests/1"); strings.HasPrefix(got, "200") {
		t.Errorf("switched off: %s", got)
	}
}

// On a worker the server is asked for the cluster's own images before their registries: by tag for those without one.
// What it does not have is left to the registry.
func TestServerGivesImages(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RequestURI())
		if !strings.HasPrefix(r.URL.Path, "/v1/node/images/example.test/own/") {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, "the server's %s", r.URL.Path[len("/v1/node/images/"):])
	}))
	t.Cleanup(server.Close)
	on := true
	cfg := RelayConfig{Registries: func() string { return "" }, Server: func() (*http.Client, string, bool) { return http.DefaultClient, server.URL + "/v1/node/images/", on }}
	ask := relay(t, cfg)
	for path, want := range map[string]string{
		"/own/own/manifests/1?ns=example.test":     "200 the server's example.test/own/manifests/1",
		"/own/own/blobs/sha256:1?ns=example.test":  "200 the server's example.test/own/blobs/sha256:1",
		"/own/other/manifests/1?ns=example.test":   "404 ",
		"/own/own/manifests/1?ns=docker.io":        "404 ",
		"/own/../own/manifests/1?ns=example.test":  "404 ",
		"/own/own/tags/list?ns=example.test":       "404 ",
		"/own/own/manifests/1":                     "404 ",
		"/own/own/manifests/1?ns=../example.test/": "404 ",
	} {
		if code, _, body := ask("GET", path, "", ""); !strings.HasPrefix(fmt.Sprint(code, " ", body), want) {
			t.Errorf("%s: %d %s, want %s", path, code, body, want)
		}
	}
	if !slices.Contains(asked, "/v1/node/images/example.test/own/manifests/1?imported") || !slices.Contains(asked, "/v1/node/images/example.test/own/blobs/sha256:1") {
		t.Errorf("the server was asked for %q", asked)
	}
	on = false
	if code, _, _ := ask("GET", "/own/own/manifests/1?ns=example.test", "", ""); code != http.StatusNotFound {
		t.Errorf("no way to the server: %d", code)
	}
}

// A worker's mirror ends when the device is a cluster of its own again; one that the owner has configured stays.
func TestTheMirrorOfAWorkerEnds(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, everyRegistry, "hosts.toml")
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	worker := NewRelay(RelayConfig{Folder: folder, Server: func() (*http.Client, string, bool) { return nil, "", false }})
	own := NewRelay(RelayConfig{Folder: folder})
	if err := worker.mirror(at); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "http://127.0.0.1:1/"+worker.secret+"/own") {
		t.Errorf("%s %v", text, err)
	}
	if err := own.mirror(at); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("# File generated by k3s.\n"), 0o600), own.mirror(at), worker.mirror(at)); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), worker.secret) {
		t.Errorf("the owner's: %s %v", text, err)
	}
}
