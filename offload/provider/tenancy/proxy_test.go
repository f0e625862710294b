package tenancy

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// Bytes pass both ways after an upgrade, and the API server is told who it is.
func TestUpgradeCarriesBytes(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n%s\n", r.Header.Get("Upgrade"), r.Header.Get("Impersonate-User"))
		rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprint(rw, "echo "+line)
		rw.Flush()
	}))
	defer api.Close()
	p, err := newProxy(&rest.Config{Host: api.URL}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, alice) }))
	defer front.Close()

	for _, protocol := range []string{"SPDY/3.1", "websocket"} {
		conn, err := net.Dial("tcp", front.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET /k8s/api/v1/namespaces/x/pods/p/exec HTTP/1.1\r\nHost: p\r\nConnection: Upgrade\r\nUpgrade: %s\r\nImpersonate-User: system:admin\r\n\r\n", protocol)
		in := bufio.NewReader(conn)
		response, err := http.ReadResponse(in, nil)
		if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%s: %v %v", protocol, response, err)
		}
		fmt.Fprint(conn, "hello\n")
		rest, _ := io.ReadAll(in)
		if want := User(alice) + "\necho hello\n"; string(rest) != want {
			t.Errorf("%s carried %q, want %q", protocol, rest, want)
		}
		conn.Close()
	}
}

func TestOtherPathsAreRefusedAsKubernetesRefuses(t *testing.T) {
	p, err := newProxy(&rest.Config{Host: "http://127.0.0.1:1"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	p.serve(w, httptest.NewRequest(http.MethodGet, "/k8s/metrics", nil), alice)
	if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), `"kind":"Status"`) {
		t.Errorf("%d %s, want a Status that forbids", w.Code, w.Body)
	}
}
