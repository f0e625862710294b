package rpc

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/httpserver"
	"rivulet/fabric/peer"
)

func identity(t testing.TB, seed byte) Identity {
	t.Helper()
	id, err := NewIdentity(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32)), "test")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestIdentityIsDeterministic(t *testing.T) {
	a, b := identity(t, 1), identity(t, 1)
	if !bytes.Equal(a.CertPEM, b.CertPEM) || !bytes.Equal(a.KeyPEM, b.KeyPEM) {
		t.Error("the same key gave two certificates")
	}
	renamed, _ := NewIdentity(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32)), "other")
	if !bytes.Equal(a.CertPEM, renamed.CertPEM) {
		t.Error("the certificate depends on the name")
	}
	if id, err := peer.IDFromCertificate(a.Certificate.Leaf); err != nil || id != a.ID || !id.Valid() {
		t.Errorf("ID %q, of the certificate %q, %v", a.ID, id, err)
	}
	if _, err := NewIdentity(make([]byte, 5), "x"); err == nil {
		t.Error("a short key was taken")
	}
}

// serve runs a server on loopback and returns its address.
func serve(t *testing.T, id Identity, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(httpserver.Peers, id, h, slog.New(slog.DiscardHandler))
	go s.ServeTLS(l, "", "")
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

func who(w http.ResponseWriter, r *http.Request) {
	id, _ := PeerID(r)
	Write(w, http.StatusOK, map[string]string{"you": string(id)})
}

func TestPinning(t *testing.T) {
	server, client, third := identity(t, 1), identity(t, 2), identity(t, 3)
	url := "https://" + serve(t, server, http.HandlerFunc(who))
	rsa := &tls.Config{InsecureSkipVerify: true}
	for _, tt := range []struct {
		name string
		tls  *tls.Config
		ok   bool
	}{
		{"the pinned peer", ClientTLS(client, server.ID), true},
		{"first contact", ClientTLS(client, ""), true},
		{"another than the pinned peer", ClientTLS(client, third.ID), false},
		{"no client certificate", rsa, false},
		{"TLS 1.2", func() *tls.Config {
			c := ClientTLS(client, server.ID)
			c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
			return c
		}(), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &http.Client{Transport: &http.Transport{TLSClientConfig: tt.tls}}
			var got map[string]string
			err := Call(t.Context(), c, http.MethodGet, url, nil, &got)
			if (err == nil) != tt.ok {
				t.Fatalf("err = %v", err)
			}
			if tt.ok && got["you"] != string(client.ID) {
				t.Errorf("the server took us for %q", got["you"])
			}
		})
	}
}

// client-go verifies the ordinary way: the peer's certificate as the only root, its
// ID as server name, our pair as files would hold it. Also when the clock is at 1970.
func TestOrdinaryVerification(t *testing.T) {
	server, client := identity(t, 1), identity(t, 2)
	addr := serve(t, server, http.HandlerFunc(who))
	for _, now := range []time.Time{time.Now(), time.Unix(60, 0), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)} {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(server.CertPEM) {
			t.Fatal("certificate PEM is not read")
		}
		pair, err := tls.X509KeyPair(client.CertPEM, client.KeyPEM)
		if err != nil {
			t.Fatal(err)
		}
		config := &tls.Config{RootCAs: roots, ServerName: string(server.ID), Certificates: []tls.Certificate{pair}, Time: func() time.Time { return now }}
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
		var got map[string]string
		if err := Call(t.Context(), c, http.MethodGet, "https://"+addr, nil, &got); err != nil || got["you"] != string(client.ID) {
			t.Errorf("at %v: %v, %v", now, got, err)
		}
		config = config.Clone()
		config.ServerName = string(client.ID)
		c = &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		if err := Call(t.Context(), c, http.MethodGet, "https://"+addr, nil, nil); err == nil {
			t.Errorf("at %v: the wrong server name was accepted", now)
		}
	}
}

func TestServerSurvivesGarbage(t *testing.T) {
	server, client := identity(t, 1), identity(t, 2)
	addr := serve(t, server, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var v struct{ A int }
		if Read(w, r, &v) {
			Write(w, http.StatusOK, v)
		}
	}))
	url := "https://" + addr
	noise := make([]byte, 4096)
	rand.Read(noise)
	for name, bytes := range map[string][]byte{"plain HTTP": []byte("GET / HTTP/1.0\r\n\r\n"), "noise": noise, "nothing": nil, "half a record": {0x16, 3, 1, 2}} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(name, err)
		}
		conn.Write(bytes)
		conn.(*net.TCPConn).CloseWrite()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.ReadAll(conn); err != nil && errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: the connection stays open", name)
		}
		conn.Close()
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: ClientTLS(client, server.ID)}}
	for _, tt := range []struct {
		name string
		body any
		code string
	}{
		{"too long", strings.Repeat("x", MaxBody), "too-large"},
		{"another type", []int{1}, "bad-request"},
		{"unknown fields are ignored", map[string]any{"a": 1, "new": []string{"x"}}, ""},
	} {
		var out struct{ A int }
		err := Call(t.Context(), c, http.MethodPost, url, tt.body, &out)
		var e *Error
		switch {
		case tt.code == "" && (err != nil || out.A != 1):
			t.Errorf("%s: %v, %v", tt.name, out, err)
		case tt.code != "" && (!errors.As(err, &e) || e.Code != tt.code):
			t.Errorf("%s: %v, want code %s", tt.name, err, tt.code)
		}
	}
}

// What a peer answers is as little trusted as what it asks.
func TestBadAnswers(t *testing.T) {
	server, client := identity(t, 1), identity(t, 2)
	for _, tt := range []struct {
		name, body, code string
		status           int
	}{
		{"endless", strings.Repeat("1", 2*MaxBody), "too-large", 200},
		{"no JSON", "<html>", "bad-answer", 200},
		{"an error of ours", `{"code":"x","message":"m\u0007\n","cure":"c"}`, "x", 403},
		{"an error of nobody's", `oops`, "http", 500},
	} {
		url := "https://" + serve(t, server, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(tt.status)
			io.WriteString(w, tt.body)
		}))
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: ClientTLS(client, server.ID)}}
		var out map[string]any
		var e *Error
		err := Call(t.Context(), c, http.MethodGet, url, nil, &out)
		if !errors.As(err, &e) || e.Code != tt.code || strings.ContainsAny(e.Message, "\n\a") {
			t.Errorf("%s: %v, want code %s", tt.name, err, tt.code)
		}
	}
}

func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	_, err = Listen(uint16(port))
	var e *Error
	if !errors.As(err, &e) || e.Cure == "" || !strings.Contains(e.Message, "TCP") {
		t.Errorf("err = %v", err)
	}
}

// A cure follows as in every error.
func TestErrorEndsInItsCure(t *testing.T) {
	if got := (&Error{Message: "b is full", Cure: "rivulet unpeer --lan"}).Error(); got != "b is full; rivulet unpeer --lan" {
		t.Error(got)
	}
	if got := (&Error{Message: "b is full"}).Error(); got != "b is full" {
		t.Error(got)
	}
}
