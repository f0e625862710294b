package external

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

// TestASilentCampusIsLostAsSoonAsAPeer: one that gives no answer, and one that refuses, are not Ready after 12 s, and
// Ready again when they answer. One that is slow is not lost.
func TestASilentCampusIsLostAsSoonAsAPeer(t *testing.T) {
	const goes, slow, silent, failing = 0, 1, 2, 3
	for name, fault := range map[string]int32{"silent": silent, "failing": failing} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var state, answers atomic.Int32
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Has("watch") {
					<-r.Context().Done()
					return
				}
				switch state.Load() {
				case silent:
					<-r.Context().Done()
					return
				case failing:
					w.WriteHeader(http.StatusBadGateway)
					return
				case slow:
					select {
					case <-r.Context().Done():
					case <-time.After(2 * time.Second):
						answers.Add(1)
					}
				}
				if strings.HasSuffix(r.URL.Path, "/kube-root-ca.crt") { // an identity that a proxy refuses is none
					w.WriteHeader(http.StatusMethodNotAllowed)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				if r.URL.Path == "/version" {
					fmt.Fprint(w, `{"gitVersion":"v1.34.0"}`)
					return
				}
				fmt.Fprint(w, `{"metadata":{}}`)
			}))
			server.EnableHTTP2 = true
			server.StartTLS()
			t.Cleanup(server.Close)
			t.Cleanup(server.CloseClientConnections)
			authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			text := strings.Replace(file+clusters+users+contexts, "'https://campus.example:6443'", fmt.Sprintf("'%s', certificate-authority-data: %s", server.URL, base64.StdEncoding.EncodeToString(authority)), 1)
			credential, err := ReadCredential([]byte(text), t.TempDir(), "", false)
			must(t, err)
			settings := Settings{Name: "campus", Namespace: "lab"}
			settings.Limits, err = Limits("cpu=2,memory=1Gi")
			must(t, err)
			must(t, settings.Complete())
			var ready, lost atomic.Bool
			target, err := New(Config{Node: "burst-campus", Settings: settings, Credential: credential, Cluster: "aaaa", Log: slog.New(slog.DiscardHandler),
				Received: func(h Health) { ready.Store(h.Ready); lost.Store(lost.Load() || !h.Ready) }})
			must(t, err)
			go func() {
				for range target.Offers(t.Context()) { //nolint:revive // what is received tells
				}
			}()
			is := func(want bool, within time.Duration, what string) time.Duration {
				begun := time.Now()
				await.True(t, within, what, func() bool { return ready.Load() == want })
				return time.Since(begun)
			}
			is(true, 30*time.Second, "it is ready")
			state.Store(slow)
			await.True(t, time.Minute, "it has answered slowly for three checks", func() bool { return answers.Load() >= 6 })
			if lost.Load() {
				t.Error("a slow campus was lost")
			}
			state.Store(fault)
			if took := is(false, 30*time.Second, "it is lost"); took > 15*time.Second { // a slow answer may be on its way
				t.Errorf("it was lost after %s", took)
			}
			state.Store(goes)
			is(true, time.Minute, "it is ready again")
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
