package external

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rivulet/offload/foreign"
)

// A foreign cluster's answers are neither read without an end nor inflated, and lead nowhere: with translation and
// without, and for who deletes what is there.
func TestACampusThatLies(t *testing.T) {
	var hits atomic.Int32
	victim := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer victim.Close()
	for what, answer := range map[string]http.HandlerFunc{
		"without an end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for block := bytes.Repeat([]byte("["), 64<<10); ; {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		},
		"compressed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprint(w, "{}")
		},
		"pointing to home": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, victim.URL, http.StatusPermanentRedirect)
		},
	} {
		server := httptest.NewTLSServer(answer)
		t.Cleanup(server.Close)
		t.Cleanup(server.CloseClientConnections)
		authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		text := strings.Replace(file+clusters+users+contexts, "'https://campus.example:6443'", fmt.Sprintf("'%s', certificate-authority-data: %s", server.URL, base64.StdEncoding.EncodeToString(authority)), 1)
		credential, err := ReadCredential([]byte(text), t.TempDir(), "", false)
		if err != nil {
			t.Fatal(err)
		}
		settings := Settings{Name: "campus", Namespace: "lab"}
		if err := settings.Complete(); err != nil {
			t.Fatal(err)
		}
		target, err := New(Config{Node: "burst-campus", Settings: settings, Credential: credential, Cluster: "aaaa", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for call, do := range map[string]func() error{
			"list": func() error {
				_, err := target.Client().CoreV1().Pods("home").List(t.Context(), metav1.ListOptions{})
				return err
			},
			"delete": func() error {
				return target.Client().CoreV1().Pods("home").Delete(t.Context(), "a", metav1.DeleteOptions{})
			},
			"state":   func() error { _, err := read(t.Context(), target.campus, target.raw, settings, "aaaa"); return err },
			"twins":   func() error { _, err := target.Twins(t.Context()); return err },
			"release": func() error { return target.Release(t.Context(), "home") },
			"purge":   func() error { _, err := Purge(t.Context(), credential, "lab", "aaaa"); return err },
			"examine": func() error { _, err := Examine(t.Context(), settings, credential, "aaaa"); return err },
			"config": func() error {
				client, err := rest.HTTPClientFor(target.Config())
				if err != nil {
					return err
				}
				resp, err := client.Get(server.URL + "/version")
				if err == nil {
					resp.Body.Close()
					err = errors.New("an answer")
					if what == "without an end" { // it is bounded where it is read
						err = &foreign.Unusable{}
					}
				}
				return err
			},
		} {
			if err := do(); !errors.As(err, new(*foreign.Unusable)) {
				t.Errorf("%s, %s: %v", what, call, err)
			}
		}
		if c, err := target.Config().Dial(t.Context(), "tcp", victim.Listener.Addr().String()); err == nil {
			c.Close()
			t.Error("there is a connection to home")
		}
	}
	if n := hits.Load(); n > 0 {
		t.Errorf("%d requests went to home", n)
	}
}

// Who may change a file of a kubeconfig, or replace it, decides what root runs or sends away: it is refused, and what the
// error says mends it.
func TestFilesThatOthersMayChange(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: files of several owners")
	}
	mk := func(owner int, mode os.FileMode, folder os.FileMode) string {
		dir := filepath.Join(t.TempDir(), "d")
		path := filepath.Join(dir, "f")
		for _, err := range []error{os.Mkdir(dir, 0o755), os.WriteFile(path, []byte("x"), 0o600), os.Chmod(path, mode), os.Chown(path, owner, owner), os.Chmod(dir, folder)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	link := func(to string, owner int) string {
		at := filepath.Join(t.TempDir(), "l")
		for _, err := range []error{os.Symlink(to, at), os.Lchown(at, owner, owner)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return at
	}
	owned := mk(0, 0o600, 0o755)
	if err := os.Chown(filepath.Dir(owned), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	for what, tc := range map[string]struct{ path, cure string }{
		"root's":                {mk(0, 0o600, 0o755), ""},
		"root's, for all":       {mk(0, 0o755, 0o755), ""},
		"a link to it":          {link(mk(0, 0o600, 0o755), 0), ""},
		"in a sticky folder":    {mk(0, 0o600, 0o777|os.ModeSticky), ""},
		"a user's":              {mk(1000, 0o600, 0o755), "sudo chown root '"},
		"for a group to write":  {mk(0, 0o660, 0o755), "sudo chmod go-w '"},
		"for all to write":      {mk(0, 0o602, 0o755), "sudo chmod go-w '"},
		"a folder of others":    {mk(0, 0o600, 0o775), "sudo chmod go-w '"},
		"a user's folder":       {owned, "sudo install -D -o root -g root -m 600 '"},
		"a user's link":         {link(mk(0, 0o600, 0o755), 1000), "sudo install "},
		"a link to a user's":    {link(mk(1000, 0o600, 0o755), 0), "sudo chown root '"},
		"a folder":              {filepath.Dir(mk(0, 0o600, 0o755)), "is no file"},
		"a device":              {"/dev/null", ""},
		"a link to itself":      {link("l", 0), "too many"},
		"through other folders": {filepath.Dir(owned) + "/../../" + filepath.Base(filepath.Dir(filepath.Dir(owned))) + "/d/f", "sudo install "},
	} {
		err := Trusted(tc.path)
		switch {
		case what == "a device" && err == nil, tc.cure == "" && err != nil && what != "a device":
			t.Errorf("%s: %v", what, err)
		case tc.cure != "" && (err == nil || !strings.Contains(err.Error(), tc.cure)):
			t.Errorf("%s: %v, want %q", what, err, tc.cure)
		}
	}
	// every file that a kubeconfig may name, and its plug-in
	bad := mk(0, 0o666, 0o755)
	plugin := mk(1000, 0o755, 0o755)
	for what, text := range map[string]string{
		"tokenFile":             "users: [{name: u, user: {tokenFile: " + bad + "}}]\n",
		"client-certificate":    "users: [{name: u, user: {client-certificate: " + bad + ", client-key: " + owned + "}}]\n",
		"plug-in":               "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: " + plugin + "}}}]\n",
		"certificate-authority": users,
	} {
		of := clusters
		if what == "certificate-authority" {
			of = strings.Replace(clusters, "6443'", "6443', certificate-authority: "+bad, 1)
		}
		if _, err := ReadCredential([]byte(file+of+text+contexts), t.TempDir(), "", false); err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "; sudo ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	// and a credential that was taken before is not used any more
	good := mk(0, 0o600, 0o755)
	c, err := ReadCredential([]byte(file+clusters+"users: [{name: u, user: {tokenFile: "+good+"}}]\n"+contexts), t.TempDir(), "", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(good, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := c.REST(); err == nil || !strings.Contains(err.Error(), "sudo chmod go-w '"+good+"'") {
		t.Errorf("%v", err)
	}
}

// A kubeconfig that verifies nobody is refused, unless that is allowed; what it runs or reads here is told.
func TestWhatAKubeconfigWants(t *testing.T) {
	for _, of := range []string{strings.Replace(clusters, "6443'", "6443', insecure-skip-tls-verify: true", 1), strings.Replace(clusters, "https", "http", 1)} {
		if _, err := ReadCredential([]byte(file+of+users+contexts), "", "", false); err == nil || !strings.Contains(err.Error(), "--insecure-skip-tls-verify") {
			t.Errorf("%v", err)
		}
		if _, err := ReadCredential([]byte(file+of+users+contexts), "", "", true); err != nil {
			t.Error(err)
		}
	}
	c, err := ReadCredential([]byte(file+clusters+users+contexts), "", "", false)
	if err != nil || c.Uses() != "" {
		t.Errorf("%q %v", c.Uses(), err)
	}
	c, err = ReadCredential([]byte(file+clusters+contexts+"users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, args: [-c, \"id\\nid\"]}}}]\n"), "", "", false)
	if err != nil || !strings.Contains(c.Uses(), `sh" "-c" "id\nid"]`) || !strings.Contains(c.Uses(), "nobody") {
		t.Errorf("%q %v", c.Uses(), err)
	}
}

// A plug-in is nobody, and has nothing of this process's environment; what it leaves behind ends with it.
func TestPluginsAreNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it becomes nobody")
	}
	t.Setenv("SECRET_OF_THE_SUPERVISOR", "secretword")
	e := &clientcmdapi.ExecConfig{Command: "/bin/sh", Args: []string{"-c", `echo "$(id -u):$(id -g):$(id -G)"; echo "$GIVEN"; env; grep NoNewPrivs /proc/self/status; test -w "$HOME" && echo home is mine`},
		Env: []clientcmdapi.ExecEnvVar{{Name: "GIVEN", Value: "by the kubeconfig"}}}
	if err := confine(e); err != nil {
		t.Fatal(err)
	}
	if len(e.Env) != 1 || e.Command != "/proc/self/exe" {
		t.Errorf("%+v", e)
	}
	t.Setenv(e.Env[0].Name, e.Env[0].Value)
	t.Setenv(execInfo, "{}")
	out, err := RunPlugin(t.Context(), e.Args[len(PluginVerb):])
	if err != nil {
		t.Fatal(err)
	}
	said := string(out)
	for _, want := range []string{"65534:65534:65534\n", "by the kubeconfig\n", "KUBERNETES_EXEC_INFO={}\n", "NoNewPrivs:\t1\n", "home is mine\n", "PATH=" + pluginPath} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in %s", want, said)
		}
	}
	if strings.Contains(said, "secretword") || strings.Contains(said, pluginEnv) {
		t.Errorf("it has this process's environment: %s", said)
	}
	if left, _ := filepath.Glob("/tmp/rivulet-plugin-*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := RunPlugin(t.Context(), []string{"/bin/sh", "-c", "head -c 2000000 /dev/zero"}); err == nil {
		t.Error("an endless credential is taken")
	}
	if _, err := RunPlugin(t.Context(), []string{"/bin/sh", "-c", "sleep 1000 & echo $! >/dev/null; exit 0"}); err != nil {
		t.Errorf("a child that stays: %v", err)
	}
	if _, err := RunPlugin(t.Context(), []string{"/bin/sh", "-c", "exit 3"}); err == nil {
		t.Error("a failure is none")
	}
}
