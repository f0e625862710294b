package tenantimages

import (
	"fmt"
	"net/http"
	"net/http/httptest"
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
		return http.DefaultClient, home.URL, on && tag == "0123456789ab"
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
