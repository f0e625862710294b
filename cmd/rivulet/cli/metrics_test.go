package cli

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/diagnose/prometheus"
	"rivulet/appliance/diagnose/prometheus/endpoint"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/state/bolt"
	"rivulet/test/harness/await"
	"rivulet/test/harness/locks"
	"rivulet/test/harness/promserver"
)

type pi struct{ at netip.Addr }

func (pi) Name() string              { return "pi" }
func (p pi) Addresses() []netip.Addr { return []netip.Addr{p.at} }
func (pi) Admit(a netip.Addr) bool   { return a.IsLoopback() }
func (pi) Own(netip.Addr) bool       { return false }
func (pi) Status() api.Status        { return api.Status{Name: "pi", Ready: true} }
func (pi) Usages() []api.VCluster    { return nil }

// scrapable is a supervisor with an endpoint on loopback. It returns the folder of its socket.
func scrapable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	store, err := bolt.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(locks.Address(t))
	metrics := prometheus.Handler(pi{}, pi{})
	e := endpoint.New(endpoint.Config{Store: store, Key: key, Name: pi{}, Metrics: metrics, Node: at.Addr(), Port: at.Port(), LAN: pi{at.Addr()}, Pods: pi{}})
	e.Configure(config.MetricsLAN)
	mux := http.NewServeMux()
	e.Routes(mux)
	m, err := lifecycle.New(slog.New(slog.DiscardHandler), lifecycle.Component{Name: "metrics-endpoint", Run: e.Run})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 2), make(chan struct{})
	go func() { m.Run(ctx); done <- nil }()
	go func() { done <- api.Serve(ctx, dir, mux, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		store.Close()
	})
	<-ready
	return dir
}

// grant runs rivulet metrics grant, and returns the configuration that it prints.
func grant(t *testing.T, dir string, args ...string) string {
	t.Helper()
	_, out, err := execute(t, dir, append([]string{"metrics", "grant"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	text, hint, ok := strings.Cut(out, "to end this access: sudo rivulet metrics revoke "+args[0]+"\n")
	if !ok || hint != "" {
		t.Errorf("%q", out)
	}
	return text
}

// A real Prometheus scrapes with what grant prints, by token and by client certificate, until that is revoked; with
// another token it does not.
func TestPrometheusScrapes(t *testing.T) {
	promserver.Tool(t, "prometheus")
	for _, by := range [][]string{nil, {"--certificate"}} {
		t.Run(fmt.Sprint(by), func(t *testing.T) {
			dir, files := scrapable(t), t.TempDir()
			text := grant(t, dir, append([]string{"prometheus", "--dir", files}, by...)...)
			if err := os.WriteFile(filepath.Join(files, "prometheus.yml"), []byte(strings.Replace(text, "scrape_interval: 30s", "scrape_interval: 1s", 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			promserver.Promtool(t, files, "", "check", "config", "prometheus.yml")
			s := promserver.Start(t, files)
			is := func(health, problem string) {
				t.Helper()
				await.NoError(t, t.Context(), 30*time.Second, "the target is "+health, func() error {
					got, why, err := s.TargetError()
					if err == nil && (got != health || !strings.Contains(why, problem)) {
						err = fmt.Errorf("it is %s: %s", got, why)
					}
					return err
				})
			}
			is("up", "")
			got, err := s.Query(`rivulet_ready{device="pi"}`, time.Time{})
			if err != nil || len(got) != 1 || got[0].Value != 1 {
				t.Errorf("%v %v", got, err)
			}
			if by == nil { // Prometheus reads the file at each scrape
				secret := filepath.Join(files, "rivulet-prometheus.token")
				token, err := os.ReadFile(secret)
				if err != nil {
					t.Fatal(err)
				}
				write := func(text string) {
					if err := os.WriteFile(secret, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				write("wrong")
				is("down", "401")
				write(string(token))
				is("up", "")
			}
			if _, out, err := execute(t, dir, []string{"metrics", "list", "-o", "json"}); err != nil || !strings.Contains(out, `"from":"127.0.0.1"`) {
				t.Errorf("%s %v", out, err)
			}
			if _, _, err := execute(t, dir, []string{"metrics", "revoke", "prometheus", "--yes"}); err != nil {
				t.Fatal(err)
			}
			is("down", "401")
		})
	}
}

// Without a folder all is in the configuration itself.
func TestConfigurationWithoutFiles(t *testing.T) {
	dir := scrapable(t)
	for name, by := range map[string][]string{"by-token": nil, "by-key": {"--certificate"}} {
		var got struct {
			Jobs []struct {
				Scheme  string `json:"scheme"`
				Targets []struct {
					Targets []string `json:"targets"`
				} `json:"static_configs"`
				TLS struct {
					CA         string `json:"ca"`
					Cert       string `json:"cert"`
					Key        string `json:"key"`
					ServerName string `json:"server_name"`
				} `json:"tls_config"`
				Authorization struct {
					Credentials string `json:"credentials"`
				} `json:"authorization"`
			} `json:"scrape_configs"`
		}
		text := grant(t, dir, append([]string{name}, by...)...)
		if err := yaml.Unmarshal([]byte(text), &got); err != nil || len(got.Jobs) != 1 {
			t.Fatalf("%v\n%s", err, text)
		}
		job := got.Jobs[0]
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(job.TLS.CA)) {
			t.Fatal(text)
		}
		trust := &tls.Config{RootCAs: roots, ServerName: job.TLS.ServerName}
		if by != nil {
			pair, err := tls.X509KeyPair([]byte(job.TLS.Cert), []byte(job.TLS.Key))
			if err != nil {
				t.Fatal(err)
			}
			trust.Certificates = []tls.Certificate{pair}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: trust}}
		await.NoError(t, t.Context(), 10*time.Second, "it is scraped", func() error {
			r, err := http.NewRequest(http.MethodGet, job.Scheme+"://"+job.Targets[0].Targets[0]+"/metrics", nil)
			if err != nil {
				return err
			}
			if c := job.Authorization.Credentials; c != "" {
				r.Header.Set("Authorization", "Bearer "+c)
			}
			resp, err := client.Do(r)
			if err != nil {
				return err
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s", name, resp.Status)
			}
			return nil
		})
		client.CloseIdleConnections()
	}
}

// Nothing is granted where the files of an access of that name are; other addresses of the device are taken.
func TestGrantIntoAFolder(t *testing.T) {
	dir, files := scrapable(t), t.TempDir()
	if text := grant(t, dir, "one", "--dir", files, "--server", "pi.example"); !strings.Contains(text, "pi.example:7444") {
		t.Error(text)
	}
	for _, name := range []string{"rivulet-one.token", "rivulet-one.ca.crt"} {
		if info, err := os.Stat(filepath.Join(files, name)); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	if _, _, err := execute(t, dir, []string{"metrics", "revoke", "one", "--yes"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := execute(t, dir, []string{"metrics", "grant", "one", "--dir", files}); err == nil || !strings.Contains(err.Error(), "; remove it") {
		t.Error(err)
	}
	if _, out, err := execute(t, dir, []string{"metrics", "list"}); err != nil || !strings.Contains(out, "nobody has access") {
		t.Errorf("%s %v", out, err)
	}
}
